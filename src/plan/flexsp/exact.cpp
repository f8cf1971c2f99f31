// Depth first over sequences, longest first, with every group that is not like one tried before.
#include <algorithm>
#include <array>
#include <limits>

#include "sluice/plan/flexsp/microbatch.h"

namespace sluice::flexsp {
namespace {

class Search {
 public:
  using Answer = MicrobatchPlanner::Answer;

  Search(const Prices& prices, std::span<const std::int64_t> lengths, const FractionBound& bound,
         const FractionBound::Limit& limit, std::int64_t& nodes)
      : prices_(prices),
        lengths_(lengths),
        bound_(bound),
        limit_(limit),
        nodes_(nodes),
        owners_(lengths.size()) {}

  Answer with(const GroupMix& mix) {
    groups_.clear();
    for (std::size_t k = mix.size(); k-- > 0;)
      groups_.insert(groups_.end(), static_cast<std::size_t>(mix[k]),
                     {k, limit_.load, prices_[k].room});
    return place(0);
  }

  Placement placement() const {
    Placement out;
    for (const Group& group : groups_)
      out.groups.push_back({group.degree, 0, 0, {}});
    for (std::size_t i = 0; i < owners_.size(); ++i) {
      PlacedGroup& group = out.groups[owners_[i]];
      group.load += prices_[group.degree].load(static_cast<double>(lengths_[i]));
      group.tokens += lengths_[i];
      group.sequences.push_back(i);
      out.load = std::max(out.load, group.load);
    }
    return out;
  }

 private:
  struct Group {
    std::size_t degree = 0;
    double seconds = 0;       // left
    std::int64_t tokens = 0;  // left
    bool operator==(const Group&) const = default;
  };

  // What is left suffices for sequence i and all later ones, as far as fractions tell.
  bool may_go_on(std::size_t i) {
    std::array<FractionBound::Left, kMostDegrees> left;
    left.fill({});
    const std::int64_t shortest = lengths_.back();
    for (const Group& group : groups_) {
      const Prices::Degree& degree = prices_[group.degree];
      if (group.tokens < shortest || group.seconds < degree.load(static_cast<double>(shortest)))
        continue;
      left[group.degree].seconds += degree.degree * group.seconds;
      left[group.degree].tokens += static_cast<double>(group.tokens);
    }
    return bound_.may_fit(i, std::span(left).first(prices_.size()), limit_);
  }

  Answer place(std::size_t i) {
    if (i == lengths_.size()) return Answer::found;
    if (--nodes_ < 0) return Answer::unknown;
    if (!may_go_on(i)) return Answer::none;
    // Those that it fills best come first. One of equal sequences is in no earlier group than the
    // one before it.
    struct Choice {
      double left;
      std::size_t group;
    };
    std::vector<Choice> choices;
    const std::size_t first = i > 0 && lengths_[i] == lengths_[i - 1] ? owners_[i - 1] : 0;
    const auto s = static_cast<double>(lengths_[i]);
    for (std::size_t g = first; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      const double load = prices_[group.degree].load(s);
      if (group.tokens < lengths_[i] || group.seconds < load) continue;
      if (std::find(groups_.begin() + static_cast<std::ptrdiff_t>(first),
                    groups_.begin() + static_cast<std::ptrdiff_t>(g),
                    group) != groups_.begin() + static_cast<std::ptrdiff_t>(g))
        continue;
      choices.push_back({(group.seconds - load) * prices_[group.degree].degree, g});
    }
    std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
      return std::pair(a.left, a.group) < std::pair(b.left, b.group);
    });
    for (const Choice& choice : choices) {
      const Group before = groups_[choice.group];
      groups_[choice.group].seconds -= prices_[before.degree].load(s);
      groups_[choice.group].tokens -= lengths_[i];
      owners_[i] = choice.group;
      const Answer answer = place(i + 1);
      if (answer != Answer::none) return answer;
      groups_[choice.group] = before;
    }
    return Answer::none;
  }

  const Prices& prices_;
  std::span<const std::int64_t> lengths_;
  const FractionBound& bound_;
  const FractionBound::Limit& limit_;
  std::int64_t& nodes_;
  std::vector<Group> groups_;
  std::vector<std::size_t> owners_;
};

}  // namespace

MicrobatchPlanner::Answer MicrobatchPlanner::search(std::span<const std::int64_t> lengths,
                                                    double load, std::int64_t& nodes,
                                                    Placement& found) const {
  const FractionBound bound(prices_, lengths);
  const FractionBound::Limit limit = bound.limit(load);
  if (!bound.may_fit(limit)) return Answer::none;
  if (!mixes_) return Answer::unknown;
  Search search(prices_, lengths, bound, limit, nodes);
  for (const GroupMix& mix : *mixes_) {
    if (!bound.may_fit(mix, limit)) continue;
    const Answer answer = search.with(mix);
    if (answer == Answer::found) found = search.placement();
    if (answer != Answer::none) return answer;
  }
  return Answer::none;
}

}  // namespace sluice::flexsp
