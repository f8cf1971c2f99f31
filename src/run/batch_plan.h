// A batch plan: which ranks of the data axis compute which sequences of a global batch, microbatch
// by microbatch. It is made from the lengths of the sequences alone, so every rank makes the same
// one, and no tokens have to be read or sent for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

struct BatchPlan {
  // By microbatch and rank: numbers of sequences within the global batch, ascending. A rank may
  // have none.
  std::vector<std::vector<std::vector<std::int64_t>>> microbatches;
};

// The baseline: sequences are dealt longest first, each to the (microbatch, rank) that has the
// fewest tokens so far. None then has more tokens than ceil(sequences / (microbatches x ranks))
// times the most that a sequence has: to get more, it would have to have the fewest tokens with
// that many sequences already, and so would all the others. REQUIRES: both numbers are positive.
BatchPlan deal_longest_first(std::span<const std::int64_t> lengths, int num_microbatches,
                             int num_ranks);

// Tokens that a rank computes in each microbatch: the lengths of its sequences, padded to a
// multiple of `multiple`.
std::vector<std::int64_t> padded_tokens(const BatchPlan& plan,
                                        std::span<const std::int64_t> lengths, int rank,
                                        int multiple);

// The next multiple, or the number itself.
constexpr std::int64_t padded_to(std::int64_t tokens, std::int64_t multiple) {
  return (tokens + multiple - 1) / multiple * multiple;
}

}  // namespace sluice
