// A batch plan: which ranks of the data axis compute which sequences of a global batch, microbatch
// by microbatch. A sequence belongs to a group of neighbouring ranks, each of which has an equal
// part of its group's tokens:
//
//   rank            0        1        2        3        4    5    6    7
//   microbatch 0   [ sequences 3, 17          ]        [ 5     ] [8]  [2, 9]      degrees 4, 2, 1,
//   1 microbatch 1   [ 0     ] [ 1, 4  ]        [ 6    ] [ 7     ]                  degree 2
//
// A plan depends on the lengths of the sequences alone, so every rank makes or reads the same one,
// and no tokens have to be sent for it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sluice {

struct SequenceGroup {
  int degree = 1;                            // ranks that share the sequences: a power of two
  int first_rank = 0;                        // of the data axis: a multiple of the degree
  std::vector<std::int64_t> sequences = {};  // numbers within the global batch; may be none

  bool holds(int rank) const { return rank >= first_rank && rank < first_rank + degree; }
  bool operator==(const SequenceGroup&) const = default;
};

struct BatchPlan {
  std::vector<std::vector<SequenceGroup>> microbatches;  // no rank is in two groups of one

  int num_microbatches() const { return static_cast<int>(microbatches.size()); }
  // The group of a rank; null: it has none and computes nothing.
  const SequenceGroup* group_of(int microbatch, int rank) const;
  bool operator==(const BatchPlan&) const = default;
};

// A rank's part of a microbatch, or of a slice of it: tokens, padding included, of sequences that
// `degree` ranks share.
struct TokenShare {
  std::int64_t tokens = 0;
  int degree = 1;

  TokenShare() = default;
  TokenShare(std::int64_t count, int ranks = 1) : tokens(count), degree(ranks) {}
  auto operator<=>(const TokenShare&) const = default;
};

// The next multiple, or the number itself.
constexpr std::int64_t padded_to(std::int64_t tokens, std::int64_t multiple) {
  return (tokens + multiple - 1) / multiple * multiple;
}

// The share of each of a group's ranks: the tokens of all its sequences, padded so that they divide
// among the ranks and each part divides among the tensor ranks.
TokenShare share_of(const SequenceGroup& group, std::span<const std::int64_t> lengths, int tensor);

// By microbatch, what a rank has.
std::vector<TokenShare> token_shares(const BatchPlan& plan, std::span<const std::int64_t> lengths,
                                     int rank, int tensor);

// The baseline: sequences are dealt longest first, each to the (microbatch, rank) that has the
// fewest tokens so far. None then has more tokens than ceil(sequences / (microbatches x ranks))
// times the most that a sequence has: to get more, it would have to have the fewest tokens with
// that many sequences already, and so would all the others. Group r of a microbatch is rank r.
// REQUIRES: both numbers are positive.
BatchPlan deal_longest_first(std::span<const std::int64_t> lengths, int num_microbatches,
                             int num_ranks);

// What a plan must fit.
struct BatchLimits {
  std::int64_t num_sequences = 0;  // of the global batch
  int num_ranks = 1;               // of the data axis
  std::int64_t heads = 1;          // query heads of a tensor rank
};

// The first problem of a plan, or "": a sequence forgotten, repeated or out of range, a degree that
// is no power of two or does not divide the heads, groups that overlap or are not aligned.
std::string problem_of(const BatchPlan& plan, const BatchLimits& limits);

}  // namespace sluice
