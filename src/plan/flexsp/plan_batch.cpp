#include "sluice/plan/flexsp/plan_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/plan/flexsp/baselines.h"
#include "sluice/plan/flexsp/buckets.h"
#include "sluice/plan/flexsp/cuts.h"
#include "sluice/plan/flexsp/microbatch.h"
#include "sluice/plan/flexsp/packing.h"

namespace sluice::flexsp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Microbatches that are full to the brim leave no choice of groups.
constexpr double kFills[] = {1.0, 0.97, 0.94, 0.90};
// Of bins, likewise: these are filled better than cuts fill microbatches.
constexpr double kPackedFills[] = {1.0, 0.9};
// A search among so few sequences ends soon enough to prove something.
constexpr std::size_t kMostSearched = 40;
constexpr std::int64_t kNodesToImprove = 20'000;
// How often sequences are placed while the places of cuts are refined, over the number of devices:
// with more of these it takes longer. A batch counts as so many sequences at least.
constexpr std::size_t kMostSketched = 2560, kFewestSequences = 1500;
// So many, and a batch of padded sequences loses next to nothing.
constexpr int kBuckets = 128;
constexpr double kNear = 1e-3;  // to a bound: good enough
// More microbatches take too long to cut.
constexpr int kMostCut = 512;

Buckets buckets_of(std::span<const std::int64_t> lengths, const PlanOptions& options) {
  if (options.exact || options.bucketing == Bucketing::none) return no_buckets(lengths);
  return options.bucketing == Bucketing::dp ? best_buckets(lengths, kBuckets)
                                            : fixed_buckets(lengths, options.bucket_width);
}

// The sequences of a batch in the order in which they are cut, and what is known of any run of
// them.
class BatchPlanner {
 public:
  BatchPlanner(const Cluster& cluster, std::span<const std::int64_t> lengths,
               const PlanOptions& options)
      : cluster_(cluster), prices_(cluster), planner_(prices_), options_(options) {
    const std::vector<std::int64_t> rounded = rounded_up(lengths, buckets_of(lengths, options));
    order_.resize(lengths.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    if (options.sort)
      std::stable_sort(order_.begin(), order_.end(),
                       [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
    for (const std::size_t number : order_) {
      own_.push_back(lengths[number]);
      ordered_.push_back(rounded[number]);
    }
    tokens_ = std::accumulate(rounded.begin(), rounded.end(), std::int64_t{0});
  }

  // Nothing where no cut was found: the batch needs too many microbatches, or others.
  std::optional<PlannedBatch> plan() {
    const int count = static_cast<int>(ordered_.size());
    const auto full = static_cast<double>(prices_.all_room());
    const int fewest =
        std::max(1, static_cast<int>(std::ceil(static_cast<double>(tokens_) / full)));
    const int from = options_.microbatches > 0 ? options_.microbatches : fewest;
    const int trials = options_.microbatches > 0 ? 1 : options_.trials;
    constexpr int kRounds = 3;
    // In the order that is given, sequences may need many more microbatches than their tokens do.
    const int last = options_.sort || options_.microbatches > 0 ? from + kRounds * trials : count;
    for (int n = from; best_.empty() && n <= last; n += trials) {
      if (n > std::min(count, kMostCut)) break;
      try_numbers(n, std::min(count, n + trials - 1));
    }
    if (best_.empty()) return std::nullopt;
    for (auto& [number, cut] : best_)
      refine(cut);
    const Cut& best =
        std::min_element(best_.begin(), best_.end(), [](const auto& a, const auto& b) {
          return a.second.seconds < b.second.seconds;
        })->second;
    std::vector<Microbatch> microbatches;
    each(best.cuts, [&](Range range) { microbatches.push_back(descending(range)); });
    if (!options_.sort) return planned(microbatches);
    // Packed by memory, microbatches have short sequences where long ones leave room for them.
    double seconds = best.seconds;
    for (const Prices::Degree& degree : prices_.degrees())
      for (const double fill : kPackedFills)
        if (auto packed = packed_below(seconds, degree, fill)) microbatches = std::move(*packed);
    return planned(microbatches);
  }

 private:
  struct Range {
    std::size_t first = 0, last = 0;
    auto operator<=>(const Range&) const = default;
  };
  template <typename Visit>
  static void each(const Cuts& cuts, const Visit& visit) {
    std::size_t first = 0;
    for (const std::size_t last : cuts) {
      visit(Range{first, last});
      first = last;
    }
  }

  using Microbatch = std::vector<std::size_t>;  // numbers in the order of the batch, longest first

  struct Cut {
    Cuts cuts;
    double seconds = kInfinity;  // or, while candidates are compared, what it takes at least
  };

  // Looks for the best cut into each of these numbers of microbatches.
  void try_numbers(int from, int to) {
    std::vector<Cut> candidates;
    const auto consider = [&](std::vector<Cuts> all) {
      for (int m = from; m <= std::min(to, static_cast<int>(all.size())); ++m) {
        Cut cut{std::move(all[static_cast<std::size_t>(m - 1)]), 0};
        if (cut.cuts.empty()) continue;
        each(cut.cuts, [&](Range range) { cut.seconds += least_of(range); });
        candidates.push_back(std::move(cut));
      }
    };
    const auto room = static_cast<double>(prices_.all_room());
    consider(cut_by_tokens(ordered_, to, room));
    for (const double fill : kFills)
      consider(cut_by_time(prices_, ordered_, to, fill * room));
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Cut& a, const Cut& b) { return a.seconds < b.seconds; });
    for (Cut& cut : candidates) {
      Cut& best = best_[cut.cuts.size()];
      each(cut.cuts, [&](Range range) {
        if (cut.seconds < best.seconds) cut.seconds += seconds_of(range) - least_of(range);
      });
      if (cut.seconds < best.seconds) best = std::move(cut);
    }
    std::erase_if(best_, [](const auto& entry) { return entry.second.cuts.empty(); });
  }

  // Moves the places of cuts, one after the other, by smaller and smaller steps.
  void refine(Cut& cut) {
    Cuts& cuts = cut.cuts;
    for (double before = kInfinity; cut.seconds < before;) {
      before = cut.seconds;
      for (std::size_t m = 0; m + 1 < cuts.size(); ++m) {
        const std::size_t first = m == 0 ? 0 : cuts[m - 1], last = cuts[m + 1];
        for (std::size_t step = (last - first) / 4; step > 0; step /= 2)
          for (const std::size_t to : {cuts[m] + step, cuts[m] - std::min(step, cuts[m])}) {
            if (to <= first || to >= last || has_sketched_enough()) continue;
            const Range a{first, to}, b{to, last};
            const double now = seconds_of(Range{first, cuts[m]}) + seconds_of(Range{cuts[m], last});
            if (tokens_of(a) > prices_.all_room() || tokens_of(b) > prices_.all_room() ||
                least_of(a) + least_of(b) >= now)
              continue;
            const double then = seconds_of(a) + seconds_of(b);
            if (then >= now) continue;
            cut.seconds -= now - then;
            cuts[m] = to;
          }
      }
    }
  }

  // Microbatches of as many bins as there are groups of a degree, if they take less than `seconds`,
  // which then is what they take.
  std::optional<std::vector<Microbatch>> packed_below(double& seconds, const Prices::Degree& degree,
                                                      double fill) {
    const std::int64_t longest = *std::max_element(ordered_.begin(), ordered_.end());
    if (longest > degree.room || has_sketched_enough()) return std::nullopt;
    const auto room = static_cast<std::int64_t>(fill * static_cast<double>(degree.room));
    const std::vector<Bin> bins = best_fit_decreasing(ordered_, std::max(room, longest));
    const auto groups = static_cast<std::size_t>(prices_.devices() / degree.degree);
    std::vector<Microbatch> out((bins.size() + groups - 1) / groups);
    if (options_.microbatches > 0 && std::ssize(out) != options_.microbatches) return std::nullopt;
    for (std::size_t b = 0; b < bins.size(); ++b)
      for (const std::int64_t number : bins[b])
        out[b / groups].push_back(static_cast<std::size_t>(number));
    double all = 0;
    for (Microbatch& microbatch : out) {
      std::stable_sort(microbatch.begin(), microbatch.end(),
                       [&](std::size_t a, std::size_t b) { return ordered_[a] > ordered_[b]; });
      all += least_of(lengths_of(microbatch));
    }
    for (const Microbatch& microbatch : out) {
      if (all >= seconds) return std::nullopt;
      all += seconds_of(lengths_of(microbatch)) - least_of(lengths_of(microbatch));
    }
    if (all >= seconds) return std::nullopt;
    seconds = all;
    return out;
  }

  Microbatch descending(Range range) const {
    Microbatch numbers(range.last - range.first);
    std::iota(numbers.begin(), numbers.end(), range.first);
    std::stable_sort(numbers.begin(), numbers.end(),
                     [&](std::size_t a, std::size_t b) { return ordered_[a] > ordered_[b]; });
    return numbers;
  }
  std::vector<std::int64_t> lengths_of(const Microbatch& microbatch) const {
    std::vector<std::int64_t> lengths;
    for (const std::size_t number : microbatch)
      lengths.push_back(ordered_[number]);
    return lengths;
  }

  std::int64_t tokens_of(Range range) const {
    const auto at = [&](std::size_t n) {
      return ordered_.begin() + static_cast<std::ptrdiff_t>(n);
    };
    return std::accumulate(at(range.first), at(range.last), std::int64_t{0});
  }
  double least_of(Range range) {
    const auto [known, is_new] = least_.try_emplace(range, 0);
    if (is_new) known->second = least_of(lengths_of(descending(range)));
    return known->second;
  }
  double least_of(const std::vector<std::int64_t>& lengths) const {
    return prices_.overhead() + FractionBound(prices_, lengths).least(1e-3);
  }
  // What a sketch takes, which is close to what the plan will take.
  double seconds_of(Range range) {
    const auto [known, is_new] = seconds_.try_emplace(range, kInfinity);
    if (is_new) known->second = seconds_of(lengths_of(descending(range)));
    return known->second;
  }
  bool has_sketched_enough() const {
    return sketched_ > kMostSketched * std::max(ordered_.size(), kFewestSequences) /
                           static_cast<std::size_t>(prices_.devices());
  }
  double seconds_of(const std::vector<std::int64_t>& lengths) {
    sketched_ += lengths.size();
    const std::optional<Placement> sketch = planner_.sketch(lengths);
    return sketch ? prices_.overhead() + sketch->load : kInfinity;
  }

  std::optional<Placement> place(const std::vector<std::int64_t>& lengths) {
    std::optional<Placement> best = planner_.plan(lengths);
    if (!options_.exact && lengths.size() > kMostSearched) return best;
    std::int64_t nodes =
        options_.exact ? std::numeric_limits<std::int64_t>::max() : kNodesToImprove;
    double low = FractionBound(prices_, lengths).least(1e-3);
    double high = best ? best->load : kInfinity;
    if (!best) {
      // Memory is short: the first placement is any.
      Placement found;
      if (planner_.search(lengths, 1e9, nodes, found) != MicrobatchPlanner::Answer::found)
        return std::nullopt;
      best = std::move(found);
      high = best->load;
    }
    while (high > low * (1 + kNear) && nodes > 0) {
      Placement found;
      const double middle = (low + high) / 2;
      switch (planner_.search(lengths, middle, nodes, found)) {
        case MicrobatchPlanner::Answer::found:
          best = std::move(found);
          high = best->load;
          break;
        case MicrobatchPlanner::Answer::none: low = middle; break;
        case MicrobatchPlanner::Answer::unknown: return best;
      }
    }
    // The last thousandth.
    for (Placement found;
         options_.exact && planner_.search(lengths, best->load * (1 - 1e-12), nodes, found) ==
                               MicrobatchPlanner::Answer::found;)
      best = std::move(found);
    return best;
  }

  PlannedBatch planned(const std::vector<Microbatch>& microbatches) {
    PlannedBatch batch;
    for (const Microbatch& numbers : microbatches) {
      PlannedMicrobatch& microbatch = batch.microbatches.emplace_back();
      int rank = 0;
      std::optional<Placement> placement = place(lengths_of(numbers));
      std::vector<std::int64_t> own;
      for (const std::size_t number : numbers)
        own.push_back(own_[number]);
      reprice(prices_, own, *placement);
      improve(prices_, own, *placement, Swaps::pairs);
      for (const PlacedGroup& placed : placement->groups) {
        const int degree = prices_[placed.degree].degree;
        PlannedGroup& out = microbatch.groups.emplace_back();
        out.group = {.degree = degree, .first_rank = rank, .sequences = {}};
        rank += degree;
        TokenSums sums;
        for (const std::size_t sequence : placed.sequences) {
          const std::size_t number = numbers[sequence];
          sums.add(static_cast<double>(own_[number]));
          out.tokens += own_[number];
          out.group.sequences.push_back(static_cast<std::int64_t>(order_[number]));
        }
        std::sort(out.group.sequences.begin(), out.group.sequences.end());
        out.seconds = cluster_.costs.seconds(degree, sums);
        out.all_to_all_seconds = cluster_.costs.all_to_all_seconds(degree, sums);
        out.bytes = cluster_.costs.bytes(degree, sums.tokens);
        microbatch.seconds = std::max(microbatch.seconds, out.seconds);
      }
      batch.seconds += microbatch.seconds;
    }
    return batch;
  }

  const Cluster& cluster_;
  Prices prices_;
  MicrobatchPlanner planner_;
  PlanOptions options_;
  std::vector<std::size_t> order_;     // numbers of the batch
  std::vector<std::int64_t> own_;      // their lengths
  std::vector<std::int64_t> ordered_;  // ... as they are planned
  std::int64_t tokens_ = 0;
  std::map<Range, double> least_;
  std::map<Range, double> seconds_;
  std::size_t sketched_ = 0;              // sequences
  std::map<std::size_t, Cut> best_ = {};  // by number of microbatches
};

}  // namespace

bool can_be_exact(const Cluster& cluster) {
  return MicrobatchPlanner(Prices(cluster)).mixes().has_value();
}

void check_lengths(const Cluster& cluster, std::span<const std::int64_t> lengths) {
  const Prices prices(cluster);
  const Prices::Degree& largest = prices[prices.size() - 1];
  for (std::size_t n = 0; n < lengths.size(); ++n)
    if (lengths[n] > largest.room)
      throw bad_data(
          "sequence {} has {} (padded), and the largest group holds {}: {} x {} tokens of memory; "
          "drop or truncate it, give devices more memory, or allow larger groups",
          n, counted(lengths[n], "token"), largest.room, counted(largest.degree, "device"),
          prices.capacity());
}

namespace {

// The same with empty groups of the devices that have none, as large as they may be.
PlannedBatch with_all_devices(const Cluster& cluster, PlannedBatch batch) {
  for (PlannedMicrobatch& microbatch : batch.microbatches) {
    int rank = 0;
    for (const PlannedGroup& group : microbatch.groups)
      rank = std::max(rank, group.group.first_rank + group.group.degree);
    for (auto degree = cluster.degrees.rbegin(); degree != cluster.degrees.rend(); ++degree)
      for (; rank % *degree == 0 && rank + *degree <= cluster.devices; rank += *degree)
        microbatch.groups.push_back({.group = {*degree, rank, {}},
                                     .seconds = cluster.costs.b1,
                                     .bytes = cluster.costs.bytes(*degree, 0)});
  }
  return batch;
}

}  // namespace

PlannedBatch plan_batch(const Cluster& cluster, std::span<const std::int64_t> lengths,
                        const PlanOptions& options) {
  std::optional<PlannedBatch> best = BatchPlanner(cluster, lengths, options).plan();
  if (!options.sort) {
    if (!best && options.microbatches == 0)
      throw user_error(
          "the batch as it is needs more than {} microbatches; sort it, or plan fewer sequences "
          "at a time",
          kMostCut);
    return best ? *std::move(best) : PlannedBatch();
  }
  // Padded to fixed buckets, what is planned is what they cost; otherwise the fastest is.
  if (best && options.bucketing == Bucketing::fixed) return *std::move(best);
  const auto has_number = [&](const PlannedBatch& batch) {
    return options.microbatches == 0 || std::ssize(batch.microbatches) == options.microbatches;
  };
  for (const double fill : kPackedFills)
    for (const int degree : cluster.degrees) {
      std::optional<PlannedBatch> fixed = fixed_degree(cluster, lengths, degree, fill);
      if (fixed && has_number(*fixed) && (!best || fixed->seconds < best->seconds))
        best = with_all_devices(cluster, *std::move(fixed));
    }
  SLUICE_CHECK(best || options.microbatches > 0, "{} sequences fit no group", lengths.size());
  return best ? *std::move(best) : PlannedBatch();
}

}  // namespace sluice::flexsp
