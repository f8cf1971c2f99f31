#include "sluice/plan/flexsp/plan_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "plan/flexsp/batches.h"
#include "sluice/base/error.h"
#include "sluice/plan/flexsp/baselines.h"
#include "sluice/plan/flexsp/microbatch.h"

namespace sluice::flexsp {
namespace {

using test::between;
using test::cluster_7b;
using Lengths = std::vector<std::int64_t>;

// Any number of devices, any costs, and any lengths that the largest group holds.
struct Case {
  Cluster cluster;
  Lengths lengths;
};

Case random_case(unsigned seed) {
  std::mt19937_64 random(seed);
  const auto factor = [&] { return 0.2 + 1.8 * test::uniform(random); };
  const int devices = static_cast<int>(between(random, 1, 64));
  const int smallest = 1 << between(random, 0, 2);
  Cluster cluster =
      cluster_7b(devices, between(random, 500, 8000), std::min(smallest, devices >= 4 ? 4 : 1),
                 1 << between(random, 2, 6));
  cluster.costs.a1 *= factor();
  cluster.costs.a2 *= factor();
  cluster.costs.b1 *= factor();
  for (auto& [degree, rate] : cluster.costs.bytes_per_s)
    rate *= factor();
  Lengths lengths(static_cast<std::size_t>(between(random, 1, seed % 3 == 0 ? 150 : 30)));
  const std::int64_t room = cluster.capacity_tokens * cluster.degrees.back();
  for (std::int64_t& length : lengths) {
    // Some are near the limit, most are short.
    const double share = std::pow(test::uniform(random), seed % 2 == 0 ? 1.5 : 6.0);
    length = std::clamp<std::int64_t>(std::llround(share * static_cast<double>(room)), 1, room);
  }
  return {std::move(cluster), std::move(lengths)};
}

// What is wrong with a plan, or "".
std::string problem_with(const Case& given, const PlannedBatch& planned) {
  const Cluster& cluster = given.cluster;
  const BatchLimits limits{static_cast<std::int64_t>(given.lengths.size()), cluster.devices,
                           cluster.costs.heads};
  if (std::string problem = problem_of(planned.plan(), limits); !problem.empty()) return problem;
  const int smallest = cluster.degrees.front();
  double seconds = 0;
  for (const PlannedMicrobatch& microbatch : planned.microbatches) {
    int ranks = 0;
    double slowest = 0;
    for (const PlannedGroup& group : microbatch.groups) {
      const int degree = group.group.degree;
      if (std::find(cluster.degrees.begin(), cluster.degrees.end(), degree) ==
          cluster.degrees.end())
        return fmt::format("degree {} is not allowed", degree);
      ranks += degree;
      TokenSums sums;
      for (const std::int64_t sequence : group.group.sequences)
        sums.add(static_cast<double>(given.lengths[static_cast<std::size_t>(sequence)]));
      if (static_cast<double>(group.tokens) != sums.tokens) return "tokens";
      if (group.tokens > cluster.capacity_tokens * degree)
        return fmt::format("{} tokens on {} devices of {}", group.tokens, degree,
                           cluster.capacity_tokens);
      if (std::abs(group.seconds - cluster.costs.seconds(degree, sums)) > 1e-9 * group.seconds)
        return "a group's seconds";
      slowest = std::max(slowest, group.seconds);
    }
    if (ranks != cluster.devices - cluster.devices % smallest)
      return fmt::format("groups have {} of {} devices", ranks, cluster.devices);
    if (microbatch.seconds != slowest) return "a microbatch's seconds";
    seconds += slowest;
  }
  return std::abs(seconds - planned.seconds) > 1e-9 * seconds ? "the batch's seconds" : "";
}

// Every sequence of a microbatch comes before every one of the next.
bool is_in_order(const PlannedBatch& planned) {
  std::int64_t before = -1;
  for (const PlannedMicrobatch& microbatch : planned.microbatches) {
    std::int64_t last = before;
    for (const PlannedGroup& group : microbatch.groups)
      for (const std::int64_t sequence : group.group.sequences) {
        if (sequence <= before) return false;
        last = std::max(last, sequence);
      }
    before = last;
  }
  return true;
}

TEST(FlexspPlan, AnyPlanIsValid) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    const Case given = random_case(seed);
    const PlannedBatch planned = plan_batch(given.cluster, given.lengths);
    EXPECT_EQ(problem_with(given, planned), "") << "seed " << seed;
    EXPECT_EQ(plan_batch(given.cluster, given.lengths).plan(), planned.plan()) << "seed " << seed;
    PlanOptions as_given;
    as_given.sort = false;
    as_given.trials = 2;
    const PlannedBatch unsorted = plan_batch(given.cluster, given.lengths, as_given);
    EXPECT_EQ(problem_with(given, unsorted), "") << "seed " << seed << ", not sorted";
    EXPECT_TRUE(is_in_order(unsorted)) << "seed " << seed;
    for (const Bucketing bucketing : {Bucketing::fixed, Bucketing::none}) {
      PlanOptions options;
      options.bucketing = bucketing;
      EXPECT_EQ(problem_with(given, plan_batch(given.cluster, given.lengths, options)), "")
          << "seed " << seed << ", bucketing " << static_cast<int>(bucketing);
    }
  }
}

// The search says of no placement that there is that there is none.
void expect_placeable(const Case& given, const PlannedBatch& planned) {
  const Prices prices(given.cluster);
  const MicrobatchPlanner planner(prices);
  for (const PlannedMicrobatch& microbatch : planned.microbatches) {
    Lengths own;
    for (const PlannedGroup& group : microbatch.groups)
      for (const std::int64_t sequence : group.group.sequences)
        own.push_back(given.lengths[static_cast<std::size_t>(sequence)]);
    std::sort(own.begin(), own.end(), std::greater<>());
    std::int64_t nodes = 20'000;
    Placement found;
    const double load = (microbatch.seconds - prices.overhead()) * (1 + 1e-9);
    EXPECT_NE(planner.search(own, load, nodes, found), MicrobatchPlanner::Answer::none);
  }
}

// A bound above the plan is an error of the program: lower_bounds() throws.
TEST(FlexspPlan, NoBoundIsAboveThePlan) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    const Case given = random_case(seed);
    const PlannedBatch planned = plan_batch(given.cluster, given.lengths);
    const std::vector<double> bounds = lower_bounds(given.cluster, given.lengths, planned);
    ASSERT_EQ(bounds.size(), planned.microbatches.size());
    for (std::size_t m = 0; m < bounds.size(); ++m) {
      EXPECT_LE(bounds[m], planned.microbatches[m].seconds * (1 + 1e-9)) << "seed " << seed;
      EXPECT_GE(bounds[m], given.cluster.costs.b1) << "seed " << seed;
    }
    expect_placeable(given, planned);
    const double any = lower_bound_of_any_cuts(given.cluster, given.lengths);
    EXPECT_LE(any, planned.seconds * (1 + 1e-9)) << "seed " << seed;
    // Nor above what others plan.
    if (const auto ada = batch_ada(given.cluster, given.lengths, 1.0)) {
      EXPECT_LE(any, ada->batch.seconds * (1 + 1e-9)) << "seed " << seed;
      const std::vector<double> own = lower_bounds(given.cluster, given.lengths, ada->batch);
      for (std::size_t m = 0; m < own.size(); ++m)
        EXPECT_LE(own[m], ada->batch.microbatches[m].seconds * (1 + 1e-9)) << "seed " << seed;
    }
  }
}

// The least time of one microbatch: every mix of groups, and everyone in every group.
double least_seconds(const Cluster& cluster, const Lengths& lengths) {
  double least = std::numeric_limits<double>::infinity();
  std::vector<int> groups;
  std::vector<TokenSums> sums;
  const std::function<void(std::size_t)> deal = [&](std::size_t sequence) {
    if (sequence == lengths.size()) {
      double slowest = 0;
      for (std::size_t g = 0; g < groups.size(); ++g) {
        if (sums[g].tokens > static_cast<double>(cluster.capacity_tokens * groups[g])) return;
        slowest = std::max(slowest, cluster.costs.seconds(groups[g], sums[g]));
      }
      least = std::min(least, slowest);
      return;
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      // Of two empty groups of one degree, the first is as good.
      if (g > 0 && groups[g] == groups[g - 1] && sums[g].tokens == 0 && sums[g - 1].tokens == 0)
        continue;
      const TokenSums before = sums[g];
      sums[g].add(static_cast<double>(lengths[sequence]));
      deal(sequence + 1);
      sums[g] = before;
    }
  };
  const std::function<void(int)> divide = [&](int left) {
    sums.assign(groups.size(), {});
    deal(0);
    for (const int degree : cluster.degrees)
      if (degree <= left && (groups.empty() || degree <= groups.back())) {
        groups.push_back(degree);
        divide(left - degree);
        groups.pop_back();
      }
  };
  divide(cluster.devices);
  return least;
}

TEST(FlexspPlan, TheExactSearchFindsWhatEnumerationFinds) {
  for (unsigned seed = 0; seed < 220; ++seed) {
    std::mt19937_64 random(seed);
    const bool larger = seed >= 200;  // too large for moves and swaps to find all of them
    Cluster cluster =
        cluster_7b(larger ? 4 : static_cast<int>(between(random, 1, 4)), 6449, 1, larger ? 1 : 4);
    // All-to-alls that are slow, so that small groups are worth it, or that larger ones do better.
    for (auto& [degree, rate] : cluster.costs.bytes_per_s)
      rate *= std::pow(10, -2 * test::uniform(random));
    Lengths lengths(static_cast<std::size_t>(larger ? 12 : between(random, 1, 6)));
    const std::int64_t room = cluster.capacity_tokens * cluster.degrees.back();
    for (std::int64_t& length : lengths)
      length = larger ? between(random, 800, 2200)
                      : between(random, 1,
                                seed % 2 == 0 ? room / 2 : std::min<std::int64_t>(room, 6449));
    PlanOptions options;
    options.exact = true;
    const PlannedBatch planned = plan_batch(cluster, lengths, options);
    EXPECT_EQ(problem_with({cluster, lengths}, planned), "") << "seed " << seed;
    const std::vector<double> bounds = lower_bounds(cluster, lengths, planned);
    for (std::size_t m = 0; m < planned.microbatches.size(); ++m) {
      Lengths own;
      for (const PlannedGroup& group : planned.microbatches[m].groups)
        for (const std::int64_t sequence : group.group.sequences)
          own.push_back(lengths[static_cast<std::size_t>(sequence)]);
      const double least = least_seconds(cluster, own);
      EXPECT_NEAR(planned.microbatches[m].seconds, least, 1e-9 * least) << "seed " << seed;
      EXPECT_LE(bounds[m], least * (1 + 1e-9)) << "seed " << seed;
      EXPECT_GT(bounds[m], 0.5 * least) << "seed " << seed;
    }
  }
}

// Of one microbatch each, in ms, by another program's branch and bound over all mixes.
TEST(FlexspPlan, KnownOptimaAreFound) {
  PlanOptions exact;
  exact.exact = true;
  const auto ms = [&](int devices, const Lengths& lengths) {
    const PlannedBatch planned = plan_batch(cluster_7b(devices, 6449), lengths, exact);
    EXPECT_EQ(planned.microbatches.size(), 1u);
    return planned.seconds * 1000;
  };
  EXPECT_NEAR(ms(64, {241024, 85504}), 8903.641, 1e-3);
  EXPECT_NEAR(ms(64, test::kFifteen), 2404.428, 1e-3);
  EXPECT_NEAR(ms(16, {30000, 20000, 9000, 8000, 6000, 4000, 3000, 2000, 1000, 500}), 2181.909,
              1e-3);
  EXPECT_NEAR(ms(8, {12000, 9000, 5000, 3000, 2000, 1000, 700, 500}), 1644.183, 1e-3);
}

TEST(FlexspPlan, OneSequenceAloneCostsWhatTheModelSays) {
  const auto cost = [](std::int64_t length, int degree) {
    const Cluster cluster = cluster_7b(64, 6449, degree, degree);
    return fixed_degree(cluster, Lengths{length}, degree, 1.0)->microbatches[0].groups[0];
  };
  struct Golden {
    std::int64_t length;
    int degree;
    double all_to_all_ms, ms;
  };
  for (const auto& [length, degree, all_to_all_ms, ms] : {Golden{4096, 1, 0, 1468.880},
                                                          {4096, 8, 10.611, 744.908},
                                                          {16384, 8, 42.446, 1220.614},
                                                          {16384, 16, 198.258, 1102.020},
                                                          {32768, 8, 84.891, 2156.006},
                                                          {32768, 16, 396.515, 1746.751},
                                                          {131072, 64, 841.068, 3223.706}}) {
    EXPECT_NEAR(cost(length, degree).seconds * 1000, ms, 1e-3) << length << " on " << degree;
    EXPECT_NEAR(cost(length, degree).all_to_all_seconds * 1000, all_to_all_ms, 1e-3)
        << length << " on " << degree;
  }
}

TEST(FlexspPlan, MemoryLeavesTheKnownCapacities) {
  const auto capacity = [](std::int64_t max_length, double gib) {
    const SequenceCosts costs =
        published_sequence_costs("7b", 64, max_length * 1024, StateSharding::parameters);
    return costs.capacity_tokens(gib * (1 << 30));
  };
  EXPECT_EQ(capacity(192, 30), 6449);
  EXPECT_EQ(capacity(192, 28), 5992);
  EXPECT_EQ(capacity(384, 30), 6407);
  EXPECT_EQ(capacity(384, 28), 5950);
}

// Longest-first placement with moves and swaps alone missed this one by a quarter, and the bound
// over classes of groups is 3904 ms.
TEST(FlexspPlan, SixLongSequencesAreProved) {
  const Cluster cluster = cluster_7b(64, 6449);
  const Lengths lengths = {59904, 57088, 57088, 55040, 53760, 36480};
  PlanOptions exact;
  exact.exact = true;
  const PlannedBatch planned = plan_batch(cluster, lengths, exact);
  EXPECT_NEAR(planned.seconds * 1000, 4799.31, 0.01);
  const std::vector<double> bounds = lower_bounds(cluster, lengths, planned);
  EXPECT_GT(std::accumulate(bounds.begin(), bounds.end(), 0.0), 0.99 * planned.seconds);
}

TEST(FlexspPlan, ABatchAsItIsMayNeedTooManyMicrobatches) {
  PlanOptions as_given;
  as_given.sort = false;
  const Cluster cluster = cluster_7b(1, 128, 1, 1);
  EXPECT_THROW(plan_batch(cluster, Lengths(513, 128), as_given), UserError);
  EXPECT_EQ(plan_batch(cluster, Lengths(512, 128), as_given).microbatches.size(), 512u);
}

TEST(FlexspPlan, ATooLongSequenceIsNamed) {
  const Cluster cluster = cluster_7b(8, 1000);
  try {
    check_lengths(cluster, Lengths{5, 8001, 3});
    FAIL() << "8001 tokens do not fit";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    const std::string text = error.what();
    EXPECT_NE(text.find("sequence 1 has 8,001 tokens"), std::string::npos) << text;
    EXPECT_NE(text.find("drop or truncate"), std::string::npos) << text;
  }
  EXPECT_NO_THROW(check_lengths(cluster, Lengths{8000}));
}

TEST(FlexspPlan, ThousandsOfMicrobatchesArePlanned) {
  Cluster cluster = cluster_7b(1, 128, 1, 1);
  const PlannedBatch planned = plan_batch(cluster, Lengths(4096, 128));
  EXPECT_EQ(planned.microbatches.size(), 4096u);
  EXPECT_EQ(problem_with({cluster, Lengths(4096, 128)}, planned), "");
}

TEST(FlexspPlan, IsNoSlowerThanGroupsOfOneDegree) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    const Case given = random_case(seed);
    const PlannedBatch planned = plan_batch(given.cluster, given.lengths);
    for (const double fill : {0.9, 1.0})
      for (const int degree : given.cluster.degrees)
        if (const auto fixed = fixed_degree(given.cluster, given.lengths, degree, fill)) {
          EXPECT_LE(planned.seconds, fixed->seconds * (1 + 1e-9)) << "seed " << seed;
        }
  }
}

TEST(FlexspPlan, SearchedToTheEndTheBoundIsThePlan) {
  const Cluster cluster = cluster_7b(16, 6449, 1, 16);
  const Lengths lengths = {30000, 20000, 9000, 8000, 6000, 4000, 3000, 2000, 1000, 500};
  PlanOptions options;
  options.exact = true;
  const PlannedBatch planned = plan_batch(cluster, lengths, options);
  double bound = 0;
  for (const double least : lower_bounds(cluster, lengths, planned, true))
    bound += least;
  EXPECT_NEAR(bound, planned.seconds, 1e-9);
}

}  // namespace
}  // namespace sluice::flexsp
