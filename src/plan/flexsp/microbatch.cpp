#include "sluice/plan/flexsp/microbatch.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

namespace sluice::flexsp {
namespace {

constexpr std::size_t kMostMixes = 30'000;
constexpr double kMostLoad = 1e15;  // seconds
// What is so near to a bound is good enough, and what could only be so much better is not looked
// at.
constexpr double kNear = 2e-3;
// Placements that are no worse than the best by this are improved, too: they may become better.
constexpr double kClose = 1.01;
// At groups that might have room for a sequence: with so many, what has been found will do.
constexpr std::int64_t kMostLooks = 50'000'000;

// The groups of a mix while sequences are placed one by one, and who has which.
class Board {
 public:
  Board(const Prices& prices, std::span<const std::int64_t> lengths)
      : prices_(prices), lengths_(lengths), owners_(lengths.size()) {
    for (std::size_t k = 0; k < prices.size(); ++k) {
      loads_.emplace_back();
      for (const std::int64_t length : lengths)
        loads_.back().push_back(prices[k].load(static_cast<double>(length)));
    }
  }

  // Longest first, each into the group that is done with it first. One may find no group that is
  // done below `limit`, or none of these that has the memory.
  enum class Outcome { placed, late, full };
  Outcome longest_first(const GroupMix& mix, double limit) {
    open(mix);
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      std::size_t degree = 0;
      Seat* seat = nullptr;
      double first = limit;
      bool full = false;
      for (std::size_t k = prices_.smallest_for(lengths_[i]); k < prices_.size(); ++k) {
        if (seats_[k].empty()) continue;
        Seat* least = &seats_[k].front();
        if (least->load + loads_[k][i] >= first) continue;
        if (least->tokens + lengths_[i] > prices_[k].room) {
          full = true;
          least = least_with_room(k, lengths_[i]);
          if (!least || least->load + loads_[k][i] >= first) continue;
        }
        first = least->load + loads_[k][i];
        degree = k;
        seat = least;
      }
      if (!seat) return full ? Outcome::full : Outcome::late;
      give(i, degree, *seat);
      sink(seats_[degree], static_cast<std::size_t>(seat - seats_[degree].data()));
    }
    return Outcome::placed;
  }

  // Longest first, each into the group with the least memory left that is done with it below
  // `limit`.
  bool best_fit(const GroupMix& mix, double limit) {
    open(mix);
    // By degree, the memory left of its groups, and their places.
    std::vector<std::set<std::pair<std::int64_t, std::size_t>>> left_over(seats_.size());
    for (std::size_t k = 0; k < seats_.size(); ++k)
      for (std::size_t n = 0; n < seats_[k].size(); ++n)
        left_over[k].emplace_hint(left_over[k].end(), prices_[k].room, n);
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      std::size_t degree = 0, place = 0;
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      for (std::size_t k = prices_.smallest_for(lengths_[i]); k < prices_.size(); ++k) {
        const auto& groups = left_over[k];
        for (auto group = groups.lower_bound({lengths_[i], 0}); group != groups.end();) {
          ++looks_;
          // Of every rank of the group.
          const std::int64_t left = (group->first - lengths_[i]) / prices_[k].degree;
          // Of equal ones the first.
          if (left > least || (left == least && degree != k)) break;
          if ((left < least || group->second < place) &&
              seats_[k][group->second].load + loads_[k][i] < limit) {
            least = left;
            degree = k;
            place = group->second;
          }
          // Of those with as much left as the one that was taken, it is the first.
          if (degree == k && left == least && place == group->second)
            group = groups.lower_bound({group->first + 1, 0});
          else
            ++group;
        }
      }
      if (least == std::numeric_limits<std::int64_t>::max()) return false;
      Seat& seat = seats_[degree][place];
      left_over[degree].erase({prices_[degree].room - seat.tokens, place});
      give(i, degree, seat);
      left_over[degree].emplace(prices_[degree].room - seat.tokens, place);
    }
    return true;
  }

  // At groups, by best_fit.
  std::int64_t looks() const { return looks_; }

  double load() const {
    double most = 0;
    for (const auto& row : seats_)
      for (const Seat& group : row)
        most = std::max(most, group.load);
    return most;
  }

  Placement placement() const {
    Placement out;
    out.load = load();
    std::vector<std::size_t> place(num_groups_);
    for (std::size_t k = seats_.size(); k-- > 0;)
      for (const Seat& group : seats_[k]) {
        place[group.number] = out.groups.size();
        out.groups.push_back({k, group.load, group.tokens, {}});
      }
    for (std::size_t i = 0; i < owners_.size(); ++i)
      out.groups[place[owners_[i]]].sequences.push_back(i);
    return out;
  }

 private:
  struct Seat {
    double load = 0;
    std::int64_t tokens = 0;
    std::size_t number = 0;
  };

  void open(const GroupMix& mix) {
    seats_.resize(mix.size());
    num_groups_ = 0;
    for (std::size_t k = 0; k < mix.size(); ++k) {
      seats_[k].assign(static_cast<std::size_t>(mix[k]), {});
      for (Seat& group : seats_[k])
        group.number = num_groups_++;
    }
  }
  Seat* least_with_room(std::size_t degree, std::int64_t length) {
    // Below a group of the heap that is no better there is none that is.
    std::vector<Seat>& heap = seats_[degree];
    Seat* least = nullptr;
    looked_at_.assign(1, 0);
    while (!looked_at_.empty()) {
      const std::size_t at = looked_at_.back();
      looked_at_.pop_back();
      if (at >= heap.size()) continue;
      Seat& group = heap[at];
      if (least && (group.load > least->load || (group.load == least->load && &group > least)))
        continue;
      if (group.tokens + length <= prices_[degree].room) {
        least = &group;
      } else {
        looked_at_.push_back(2 * at + 2);
        looked_at_.push_back(2 * at + 1);
      }
    }
    return least;
  }
  // Groups of a degree are a heap, the least load first; the one at `at` has got more.
  static void sink(std::vector<Seat>& heap, std::size_t at) {
    for (std::size_t below; (below = 2 * at + 1) < heap.size(); at = below) {
      if (below + 1 < heap.size() && heap[below + 1].load < heap[below].load) ++below;
      if (heap[below].load >= heap[at].load) return;
      std::swap(heap[below], heap[at]);
    }
  }
  void give(std::size_t sequence, std::size_t degree, Seat& group) {
    group.load += loads_[degree][sequence];
    group.tokens += lengths_[sequence];
    owners_[sequence] = group.number;
  }

  const Prices& prices_;
  std::span<const std::int64_t> lengths_;
  std::vector<std::vector<double>> loads_;  // by degree
  std::vector<std::vector<Seat>> seats_;    // by degree
  std::vector<std::size_t> owners_;
  std::size_t num_groups_ = 0;
  std::vector<std::size_t> looked_at_;
  std::int64_t looks_ = 0;
};

}  // namespace

MicrobatchPlanner::MicrobatchPlanner(const Prices& prices)
    : prices_(prices), mixes_(all_mixes(prices, kMostMixes)) {}

namespace {

// The best placement so far, and attempts to find a better one.
class Hunt {
 public:
  Hunt(const Prices& prices, std::span<const std::int64_t> lengths)
      : prices_(prices), lengths_(lengths), bound_(prices, lengths), board_(prices, lengths) {}

  // From the groups that fractions need, of some degree at least, from mix to mix as long as one
  // next to it is better.
  void from_mix_to_mix() {
    const double least = bound_.least(kNear);
    if (least > kMostLoad) return;  // memory rules all out
    for (std::size_t smallest = 0; smallest < prices_.size(); ++smallest) {
      std::optional<GroupMix> mix;
      for (double slack = 1; !mix && slack < 3; slack *= 1.03) {
        FractionBound::Limit limit = bound_.limit(least * slack);
        for (std::size_t k = 0; k < smallest; ++k)
          limit.too_long[k] = lengths_.size();
        mix = bound_.smallest_groups(limit);
      }
      if (!mix) continue;
      if (auto placement = placed(*mix, load())) best_ = std::move(placement);
      for (bool better = true; better;) {
        better = false;
        for (GroupMix& next : neighbours(prices_, *mix)) {
          if (!worth_trying(next)) continue;
          auto placement = placed(next, load() * (1 - kNear));
          if (!placement) continue;
          best_ = std::move(placement);
          mix = std::move(next);
          better = true;
        }
      }
    }
    if (best_) improve(prices_, lengths_, *best_);
  }

  void through(std::span<const GroupMix> mixes) {
    const double floor = bound_.least(mixes, load(), kNear).load;
    for (const GroupMix& mix : mixes) {
      if (load() <= floor * (1 + kNear)) return;
      if (!worth_trying(mix)) continue;
      std::optional<Placement> placement = placed(mix, load() * kClose);
      if (!placement) continue;
      improve(prices_, lengths_, *placement);
      if (placement->load < load()) best_ = std::move(placement);
    }
  }

  std::optional<Placement>& best() { return best_; }

 private:
  double load() const { return best_ ? best_->load : kMostLoad; }

  // A placement with these groups whose load is below `limit`.
  std::optional<Placement> placed(const GroupMix& mix, double limit) {
    const Board::Outcome outcome = board_.longest_first(mix, limit);
    if (outcome == Board::Outcome::late) return std::nullopt;
    if (outcome == Board::Outcome::full &&
        ((best_ && board_.looks() > kMostLooks) || !board_.best_fit(mix, load())))
      return std::nullopt;
    return board_.placement();
  }
  bool worth_trying(const GroupMix& mix) {
    const double most = load() * (1 - kNear);
    if (nearer_.load != most) nearer_ = bound_.limit(most);
    return bound_.may_fit(mix, nearer_);
  }

  const Prices& prices_;
  std::span<const std::int64_t> lengths_;
  FractionBound bound_;
  Board board_;
  std::optional<Placement> best_;
  FractionBound::Limit nearer_;  // what a better placement would have to keep
};

}  // namespace

std::optional<Placement> MicrobatchPlanner::sketch(std::span<const std::int64_t> lengths) const {
  Hunt hunt(prices_, lengths);
  hunt.from_mix_to_mix();
  return std::move(hunt.best());
}

std::optional<Placement> MicrobatchPlanner::plan(std::span<const std::int64_t> lengths) const {
  Hunt hunt(prices_, lengths);
  hunt.from_mix_to_mix();
  if (mixes_) hunt.through(*mixes_);
  return std::move(hunt.best());
}

}  // namespace sluice::flexsp
