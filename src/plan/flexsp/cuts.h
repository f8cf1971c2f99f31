// Where the sequences of a batch, in a given order, are cut into microbatches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "sluice/plan/flexsp/prices.h"

namespace sluice::flexsp {

// Where each microbatch ends. The last one ends with the sequences.
using Cuts = std::vector<std::size_t>;

// For 1 to `most` microbatches: cuts with the smallest largest number of tokens of a microbatch.
// None has more than `most_tokens`; no cuts where that cannot be, and none for more microbatches
// than there are sequences. REQUIRES: there are sequences.
std::vector<Cuts> cut_by_tokens(std::span<const std::int64_t> lengths, int most,
                                double most_tokens = std::numeric_limits<double>::infinity());

// Likewise, with the least sum of what microbatches take at best, which is the overhead and the
// longest of: their slowest sequence, and their work shared by all devices.
std::vector<Cuts> cut_by_time(const Prices& prices, std::span<const std::int64_t> lengths, int most,
                              double most_tokens);

}  // namespace sluice::flexsp
