#include "sluice/plan/flexsp/microbatch.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace sluice::flexsp {
namespace {

constexpr std::size_t kMostMixes = 30'000;
// Placements that are improved, of those that look best.
constexpr std::size_t kImproved = 8;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

  // Longest first, each into the group that is done with it first. False: one finds no room, or
  // none that is done below `limit`.
  bool longest_first(const GroupMix& mix, double limit) {
    open(mix);
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      std::size_t degree = 0;
      Seat* seat = nullptr;
      double first = limit;
      for (std::size_t k = prices_.smallest_for(lengths_[i]); k < prices_.size(); ++k)
        for (Seat& group : seats_[k]) {
          if (group.tokens + lengths_[i] > prices_[k].room) continue;
          if (const double done = group.load + loads_[k][i]; done < first) {
            first = done;
            degree = k;
            seat = &group;
          }
          break;  // of its degree, no other has less to do
        }
      if (!seat) return false;
      give(i, degree, *seat);
      // Groups of a degree stand by what they have to do.
      std::vector<Seat>& row = seats_[degree];
      for (auto at = static_cast<std::size_t>(seat - row.data());
           at + 1 < row.size() && row[at + 1].load < row[at].load; ++at)
        std::swap(row[at], row[at + 1]);
    }
    return true;
  }

  // Longest first, each into the group with the least memory left that is done with it below
  // `limit`.
  bool best_fit(const GroupMix& mix, double limit) {
    open(mix);
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      std::size_t degree = 0;
      Seat* seat = nullptr;
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      for (std::size_t k = prices_.smallest_for(lengths_[i]); k < prices_.size(); ++k)
        for (Seat& group : seats_[k]) {
          // Of every rank of the group.
          const std::int64_t left =
              (prices_[k].room - group.tokens - lengths_[i]) / prices_[k].degree;
          if (left < 0 || left >= least || group.load + loads_[k][i] >= limit) continue;
          least = left;
          degree = k;
          seat = &group;
        }
      if (!seat) return false;
      give(i, degree, *seat);
    }
    return true;
  }

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
};

// The best of what was tried, by load; of equal ones, the first.
class Best {
 public:
  explicit Best(double limit) : limit_(limit) {}
  // Above this nothing is worth being kept.
  double limit() const { return kept_.size() < kImproved ? kInfinity : kept_.back().load; }
  void add(Placement placement) {
    limit_ = std::min(limit_, placement.load);
    const auto after = std::upper_bound(kept_.begin(), kept_.end(), placement.load,
                                        [](double load, const auto& p) { return load < p.load; });
    kept_.insert(after, std::move(placement));
    if (kept_.size() > kImproved) kept_.pop_back();
  }
  std::vector<Placement>& kept() { return kept_; }
  double load() const { return limit_; }

 private:
  double limit_;
  std::vector<Placement> kept_;
};

}  // namespace

MicrobatchPlanner::MicrobatchPlanner(const Prices& prices)
    : prices_(prices), mixes_(all_mixes(prices, kMostMixes)) {}

std::optional<Placement> MicrobatchPlanner::plan(std::span<const std::int64_t> lengths,
                                                 double limit) {
  const FractionBound bound(prices_, lengths);
  Board board(prices_, lengths);
  Best best(limit);
  // An improvement may bring more than this, so what comes close is kept.
  constexpr double kClose = 1.05;
  const auto attempt = [&](const GroupMix& mix, const FractionBound::Limit& at) {
    if (!bound.may_fit(mix, at)) return;
    const double most = std::min(best.limit(), best.load() * kClose);
    if (board.longest_first(mix, most) || board.best_fit(mix, best.load()))
      best.add(board.placement());
  };
  if (mixes_) {
    for (const GroupMix& mix : *mixes_)
      attempt(mix, bound.limit(best.load()));
  }
  if (best.kept().empty()) return std::nullopt;
  for (Placement& placement : best.kept())
    improve(prices_, lengths, placement);
  auto& kept = best.kept();
  auto least = std::min_element(kept.begin(), kept.end(),
                                [](const auto& a, const auto& b) { return a.load < b.load; });
  if (!(least->load < limit)) return std::nullopt;
  return std::move(*least);
}

void improve(const Prices& prices, std::span<const std::int64_t> lengths, Placement& placement) {
  const auto load_of = [&](const PlacedGroup& group, std::size_t sequence) {
    return prices[group.degree].load(static_cast<double>(lengths[sequence]));
  };
  const auto room_of = [&](const PlacedGroup& group) {
    return prices[group.degree].room - group.tokens;
  };
  constexpr int kMostRounds = 200;
  for (int round = 0; round < kMostRounds; ++round) {
    auto& groups = placement.groups;
    const auto slowest = static_cast<std::size_t>(
        std::max_element(groups.begin(), groups.end(),
                         [](const auto& a, const auto& b) { return a.load < b.load; }) -
        groups.begin());
    placement.load = groups[slowest].load;
    struct Change {
      double load;
      std::size_t given, to, taken;
    };
    constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
    Change best{placement.load * (1 - 1e-9), kNone, 0, kNone};
    PlacedGroup& from = groups[slowest];
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (g == slowest) continue;
      const PlacedGroup& to = groups[g];
      for (std::size_t a = 0; a < from.sequences.size(); ++a) {
        const std::size_t given = from.sequences[a];
        const double left = from.load - load_of(from, given);
        const double grown = to.load + load_of(to, given);
        if (left >= best.load) continue;
        if (grown < best.load && lengths[given] <= room_of(to))
          best = {std::max(left, grown), a, g, kNone};
        for (std::size_t b = 0; b < to.sequences.size(); ++b) {
          const std::size_t taken = to.sequences[b];
          const std::int64_t more = lengths[given] - lengths[taken];
          if (more > room_of(to) || -more > room_of(from)) continue;
          const double most = std::max(left + load_of(from, taken), grown - load_of(to, taken));
          if (most < best.load) best = {most, a, g, b};
        }
      }
    }
    if (best.given == kNone) return;
    PlacedGroup& to = groups[best.to];
    const std::size_t given = from.sequences[best.given];
    from.sequences.erase(from.sequences.begin() + static_cast<std::ptrdiff_t>(best.given));
    if (best.taken != kNone) {
      const std::size_t taken = to.sequences[best.taken];
      to.sequences.erase(to.sequences.begin() + static_cast<std::ptrdiff_t>(best.taken));
      from.sequences.push_back(taken);
    }
    to.sequences.push_back(given);
    // Summed anew: nothing adds up, and equal groups have equal loads.
    for (PlacedGroup* group : {&from, &to}) {
      group->load = 0;
      group->tokens = 0;
      for (const std::size_t sequence : group->sequences) {
        group->load += load_of(*group, sequence);
        group->tokens += lengths[sequence];
      }
    }
  }
}

}  // namespace sluice::flexsp
