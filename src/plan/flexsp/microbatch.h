// One microbatch: which groups there are, and which of them computes which sequence, so that the
// slowest group is as fast as can be.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sluice/plan/flexsp/bound.h"

namespace sluice::flexsp {

struct PlacedGroup {
  std::size_t degree = 0;  // its number (Prices)
  double load = 0;         // seconds beyond the overhead
  std::int64_t tokens = 0;
  std::vector<std::size_t> sequences;  // of the microbatch, by number
};

struct Placement {
  std::vector<PlacedGroup> groups;  // largest degree first; some may be empty
  double load = 0;                  // the largest of any group
};

// Plans microbatches for one set of prices, which outlives it.
class MicrobatchPlanner {
 public:
  explicit MicrobatchPlanner(const Prices& prices);

  // All mixes, where they are few enough to look at each.
  const std::optional<std::vector<GroupMix>>& mixes() const { return mixes_; }

  // Longest first into the group that is done first, or best fit by memory where there is little of
  // it, with mixes one next to the other; then single sequences are moved and swapped. Nothing
  // where no placement was found: memory is short. REQUIRES: descending lengths, each of which fits
  // a group.
  std::optional<Placement> sketch(std::span<const std::int64_t> lengths) const;
  // The same with every mix that may be better, where they are few.
  std::optional<Placement> plan(std::span<const std::int64_t> lengths) const;

  // An exhaustive search for a placement with a load of at most `load`, at most `nodes` steps of
  // it, which it takes away.
  enum class Answer { found, none, unknown };
  Answer search(std::span<const std::int64_t> lengths, double load, std::int64_t& nodes,
                Placement& found) const;

 private:
  const Prices& prices_;
  std::optional<std::vector<GroupMix>> mixes_;
};

// Sums up what its groups have, for sequences of these lengths.
void reprice(const Prices& prices, std::span<const std::int64_t> lengths, Placement& placement);

// Moves sequences from the slowest group to others, and swaps one for one or, which takes longer,
// also one for two, as long as that makes it faster.
enum class Swaps { single, pairs };
void improve(const Prices& prices, std::span<const std::int64_t> lengths, Placement& placement,
             Swaps swaps = Swaps::single);

}  // namespace sluice::flexsp
