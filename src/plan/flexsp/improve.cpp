// A placement gets better by small changes: the slowest group gives a sequence, and takes none, one
// or two of another group for it.
#include <algorithm>
#include <limits>
#include <vector>

#include "sluice/plan/flexsp/microbatch.h"

namespace sluice::flexsp {
namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

void sum_up(const Prices& prices, std::span<const std::int64_t> lengths, PlacedGroup& group) {
  group.load = 0;
  group.tokens = 0;
  for (const std::size_t sequence : group.sequences) {
    group.load += prices[group.degree].load(static_cast<double>(lengths[sequence]));
    group.tokens += lengths[sequence];
  }
}

// The best of the changes that were looked at.
struct Change {
  double load = 0;  // of the slower one of the two groups, afterwards
  std::size_t to = kNone;
  std::size_t given = kNone;              // of the slowest group's sequences
  std::size_t taken[2] = {kNone, kNone};  // of the other group's
};

class Exchange {
 public:
  Exchange(const Prices& prices, std::span<const std::int64_t> lengths, Placement& placement)
      : prices_(prices), lengths_(lengths), placement_(placement) {}

  // Makes the slowest group faster. False: it finds no way.
  bool once(bool with_pairs) {
    auto& groups = placement_.groups;
    slowest_ = static_cast<std::size_t>(
        std::max_element(groups.begin(), groups.end(),
                         [](const auto& a, const auto& b) { return a.load < b.load; }) -
        groups.begin());
    placement_.load = groups[slowest_].load;
    best_ = {.load = placement_.load * (1 - 1e-9)};
    for (std::size_t g = 0; g < groups.size(); ++g)
      if (g != slowest_) look_for_none_or_one(g);
    // Where memory is short, two may fit where one does not.
    const bool is_stuck = best_.to == kNone;
    for (std::size_t g = 0; g < groups.size() && is_stuck && with_pairs; ++g)
      if (g != slowest_) look_for_two(g);
    if (best_.to == kNone) return false;
    apply();
    return true;
  }

 private:
  double load(const PlacedGroup& group, std::size_t sequence) const {
    return prices_[group.degree].load(static_cast<double>(lengths_[sequence]));
  }
  std::int64_t room(const PlacedGroup& group) const {
    return prices_[group.degree].room - group.tokens;
  }

  void look_for_none_or_one(std::size_t other) {
    const PlacedGroup& from = placement_.groups[slowest_];
    const PlacedGroup& to = placement_.groups[other];
    for (std::size_t n = 0; n < from.sequences.size(); ++n) {
      const std::size_t given = from.sequences[n];
      const double left = from.load - load(from, given);
      const double grown = to.load + load(to, given);
      if (left >= best_.load) continue;
      if (grown < best_.load && lengths_[given] <= room(to))
        best_ = {std::max(left, grown), other, n, {kNone, kNone}};
      for (std::size_t m = 0; m < to.sequences.size(); ++m) {
        const std::size_t taken = to.sequences[m];
        const std::int64_t more = lengths_[given] - lengths_[taken];
        if (more > room(to) || -more > room(from)) continue;
        const double most = std::max(left + load(from, taken), grown - load(to, taken));
        if (most < best_.load) best_ = {most, other, n, {m, kNone}};
      }
    }
  }

  void look_for_two(std::size_t other) {
    const PlacedGroup& from = placement_.groups[slowest_];
    const PlacedGroup& to = placement_.groups[other];
    std::vector<std::size_t> ascending(to.sequences.size());  // numbers of its sequences
    for (std::size_t m = 0; m < ascending.size(); ++m)
      ascending[m] = m;
    const auto length = [&](std::size_t m) { return lengths_[to.sequences[m]]; };
    std::stable_sort(ascending.begin(), ascending.end(),
                     [&](std::size_t a, std::size_t b) { return length(a) < length(b); });
    for (std::size_t n = 0; n < from.sequences.size(); ++n) {
      const std::size_t given = from.sequences[n];
      const double left = from.load - load(from, given);
      const double grown = to.load + load(to, given);
      for (std::size_t a = 0; a < ascending.size(); ++a) {
        const std::size_t first = ascending[a];
        // Of those that leave the other group with memory enough, the shortest.
        const std::int64_t least = lengths_[given] - room(to) - length(first);
        const auto found = std::lower_bound(
            ascending.begin() + static_cast<std::ptrdiff_t>(a) + 1, ascending.end(), least,
            [&](std::size_t m, std::int64_t value) { return length(m) < value; });
        if (found == ascending.end()) continue;
        if (length(first) + length(*found) - lengths_[given] > room(from)) continue;
        const std::size_t one = to.sequences[first], two = to.sequences[*found];
        const double most = std::max(left + load(from, one) + load(from, two),
                                     grown - load(to, one) - load(to, two));
        if (most < best_.load) best_ = {most, other, n, {first, *found}};
      }
    }
  }

  void apply() {
    PlacedGroup& from = placement_.groups[slowest_];
    PlacedGroup& to = placement_.groups[best_.to];
    const std::size_t given = from.sequences[best_.given];
    from.sequences.erase(from.sequences.begin() + static_cast<std::ptrdiff_t>(best_.given));
    std::sort(std::begin(best_.taken), std::end(best_.taken), std::greater<>());
    for (const std::size_t taken : best_.taken) {
      if (taken == kNone) continue;
      from.sequences.push_back(to.sequences[taken]);
      to.sequences.erase(to.sequences.begin() + static_cast<std::ptrdiff_t>(taken));
    }
    to.sequences.push_back(given);
    // Summed anew: nothing adds up, and equal groups have equal loads.
    sum_up(prices_, lengths_, from);
    sum_up(prices_, lengths_, to);
  }

  const Prices& prices_;
  std::span<const std::int64_t> lengths_;
  Placement& placement_;
  std::size_t slowest_ = 0;
  Change best_;
};

}  // namespace

void reprice(const Prices& prices, std::span<const std::int64_t> lengths, Placement& placement) {
  placement.load = 0;
  for (PlacedGroup& group : placement.groups) {
    sum_up(prices, lengths, group);
    placement.load = std::max(placement.load, group.load);
  }
}

void improve(const Prices& prices, std::span<const std::int64_t> lengths, Placement& placement,
             Swaps swaps) {
  constexpr int kMostRounds = 200;
  Exchange exchange(prices, lengths, placement);
  for (int round = 0; round < kMostRounds && exchange.once(swaps == Swaps::pairs); ++round) {
  }
}

}  // namespace sluice::flexsp
