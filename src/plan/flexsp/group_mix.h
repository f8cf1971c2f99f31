// Group mixes: how many groups there are of each degree. All devices are in a group.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "sluice/plan/flexsp/prices.h"

namespace sluice::flexsp {

// By number of the degree (Prices).
using GroupMix = std::vector<int>;

// All mixes of so many devices, in a fixed order; nothing where there are more than `limit`.
// Devices that the smallest degree does not divide stay without a group.
std::optional<std::vector<GroupMix>> all_mixes(const Prices& prices, std::size_t limit);

// The mixes that differ from one in a single group: two become one of twice the degree, or one
// becomes two.
std::vector<GroupMix> neighbours(const Prices& prices, const GroupMix& mix);

}  // namespace sluice::flexsp
