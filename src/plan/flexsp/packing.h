// Sequences in bins, whoever computes those.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::flexsp {

using Bin = std::vector<std::int64_t>;  // numbers of sequences, longest first

// Longest first, each into the bin with the least room left that still holds it; of equal ones,
// into the oldest. Bins stand in the order in which they were opened. REQUIRES: no sequence is
// longer than `room`.
std::vector<Bin> best_fit_decreasing(std::span<const std::int64_t> lengths, std::int64_t room);

}  // namespace sluice::flexsp
