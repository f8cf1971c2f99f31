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

// The mixes that differ from one in this: pairs of groups became one group each of the next degree,
// or groups became a pair each of the one before; 1, 2, 4 and so on of them.
std::vector<GroupMix> neighbours(const Prices& prices, const GroupMix& mix);

}  // namespace sluice::flexsp
