#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "sluice/base/error.h"
#include "sluice/plan/flexsp/microbatch.h"
#include "sluice/plan/flexsp/plan_batch.h"

namespace sluice::flexsp {
namespace {

// A search among so few sequences ends soon enough to prove something.
constexpr std::size_t kMostSearched = 40;
constexpr std::int64_t kMostNodes = 3'000'000;
constexpr std::int64_t kMostNodesOfBatch = 20'000'000;
constexpr double kProved = 1e-3;  // how near a bound has to come to the plan
// A bound is looked for up to a little above the plan, so that a wrong one shows.
constexpr double kAbove = 1e-3;
constexpr double kRounding = 1e-9;

}  // namespace

std::vector<double> lower_bounds(const Cluster& cluster, std::span<const std::int64_t> lengths,
                                 const PlannedBatch& batch, bool exact) {
  const Prices prices(cluster);
  const MicrobatchPlanner planner(prices);
  std::vector<double> out;
  std::int64_t nodes_left = kMostNodesOfBatch;
  for (const PlannedMicrobatch& microbatch : batch.microbatches) {
    std::vector<std::int64_t> own;
    for (const PlannedGroup& group : microbatch.groups)
      for (const std::int64_t number : group.group.sequences)
        own.push_back(lengths[static_cast<std::size_t>(number)]);
    std::sort(own.begin(), own.end(), std::greater<>());
    const FractionBound bound(prices, own);
    const double planned = microbatch.seconds - prices.overhead();
    double low = planner.mixes() ? bound.least(*planner.mixes(), planned * (1 + kAbove), 1e-4).load
                                 : bound.least(1e-4);
    double undecided = planned;
    std::int64_t nodes = own.size() <= kMostSearched ? std::min(kMostNodes, nodes_left) : 0;
    nodes_left -= nodes;
    while (nodes > 0 && undecided > low * (1 + kProved)) {
      Placement found;
      const double middle = (low + undecided) / 2;
      std::int64_t some = nodes / 2;
      const std::int64_t given = some;
      const auto answer = planner.search(own, middle, some, found);
      nodes -= given - std::max<std::int64_t>(some, 0);
      (answer == MicrobatchPlanner::Answer::none ? low : undecided) = middle;
      if (nodes < 100) break;
    }
    nodes_left += nodes;
    if (exact) {
      Placement found;
      std::int64_t all = std::numeric_limits<std::int64_t>::max();
      if (planner.search(own, planned * (1 - kRounding), all, found) ==
          MicrobatchPlanner::Answer::none)
        low = planned;
    }
    SLUICE_CHECK(low <= planned * (1 + kRounding),
                 "microbatch {} takes {} s and is said to take {} s at least",
                 &microbatch - batch.microbatches.data(), planned, low);
    out.push_back(prices.overhead() + std::min(low, planned));
  }
  return out;
}

double lower_bound_of_any_cuts(const Cluster& cluster, std::span<const std::int64_t> lengths) {
  const Prices prices(cluster);
  double tokens = 0, work = 0, slowest = 0;
  for (const std::int64_t length : lengths) {
    tokens += static_cast<double>(length);
    work += prices.least_work(length);
    slowest = std::max(slowest, prices.least_load(length));
  }
  const double microbatches =
      std::max(1.0, std::ceil(tokens / static_cast<double>(prices.all_room())));
  return microbatches * prices.overhead() + std::max(slowest, work / prices.devices());
}

}  // namespace sluice::flexsp
