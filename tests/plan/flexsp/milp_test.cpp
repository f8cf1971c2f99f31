#include "sluice/plan/flexsp/milp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "plan/flexsp/batches.h"
#include "sluice/base/error.h"

namespace sluice::flexsp {
namespace {

using test::cluster_7b;
using Lengths = std::vector<std::int64_t>;

constexpr const char* kAbsent =
    "this build has no CBC: install the Debian package coinor-libcbc-dev and build again";

// One number of microbatches, the smallest that does.
PlanOptions one_trial() {
  PlanOptions options;
  options.trials = 1;
  return options;
}

TEST(FlexspMilp, ABuildWithoutTheSolverSaysWhatToInstall) {
  if (has_milp()) GTEST_SKIP() << "this build has CBC";
  try {
    plan_by_milp(cluster_7b(8, 6449), Lengths{5}, {}, 1);
    FAIL() << "there is no solver";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("coinor-libcbc-dev"), std::string::npos);
  }
}

TEST(FlexspMilp, KnownOptimaAreFound) {
  if (!has_milp()) GTEST_SKIP() << kAbsent;
  const auto ms = [&](int devices, const Lengths& lengths) {
    const PlannedBatch planned = plan_by_milp(cluster_7b(devices, 6449), lengths, one_trial(), 20);
    EXPECT_EQ(planned.microbatches.size(), 1u);
    return planned.seconds * 1000;
  };
  EXPECT_NEAR(ms(64, {241024, 85504}), 8903.641, 1e-3);
  EXPECT_NEAR(ms(8, {12000, 9000, 5000, 3000, 2000, 1000, 700, 500}), 1644.183, 1e-3);
}

TEST(FlexspMilp, PlansAreValidAndNoBetterThanTheBound) {
  if (!has_milp()) GTEST_SKIP() << kAbsent;
  for (unsigned seed = 0; seed < 4; ++seed) {
    const Cluster cluster = cluster_7b(seed == 3 ? 12 : 16, 6449, 1 + seed % 2);
    const Lengths lengths = test::batch_of(test::kCommonCrawlLike, 60, 48 * 1024, seed);
    const PlannedBatch planned = plan_by_milp(cluster, lengths, one_trial(), 0.3);
    EXPECT_EQ(problem_of(planned.plan(), {60, cluster.devices, 64}), "") << "seed " << seed;
    for (const PlannedMicrobatch& microbatch : planned.microbatches) {
      int ranks = 0;
      for (const PlannedGroup& group : microbatch.groups) {
        ranks += group.group.degree;
        EXPECT_LE(group.tokens, cluster.capacity_tokens * group.group.degree) << "seed " << seed;
      }
      EXPECT_EQ(ranks, cluster.devices) << "seed " << seed;
    }
    const std::vector<double> bounds = lower_bounds(cluster, lengths, planned);
    for (std::size_t m = 0; m < bounds.size(); ++m)
      EXPECT_LE(bounds[m], planned.microbatches[m].seconds * (1 + 1e-9)) << "seed " << seed;
  }
}

TEST(FlexspMilp, BucketsMayBeOfOneWidthOrOfOneLength) {
  if (!has_milp()) GTEST_SKIP() << kAbsent;
  const Cluster cluster = cluster_7b(8, 6449);
  // As one bucket of 12000 tokens, six sequences take two microbatches of 8 x 6449 tokens.
  const Lengths lengths = {12000, 9000, 8500, 9500, 8200, 4000};
  PlanOptions options = one_trial();
  EXPECT_EQ(plan_by_milp(cluster, lengths, options, 5).microbatches.size(), 1u);
  options.bucketing = Bucketing::none;
  EXPECT_EQ(plan_by_milp(cluster, lengths, options, 5).microbatches.size(), 1u);
  options.bucketing = Bucketing::fixed;
  options.bucket_width = 20'000;
  EXPECT_EQ(plan_by_milp(cluster, lengths, options, 5).microbatches.size(), 2u);
}

TEST(FlexspMilp, OneSequenceLeavesTheOtherDevicesEmpty) {
  if (!has_milp()) GTEST_SKIP() << kAbsent;
  // Six heads: of 8 ranks, groups of 1 and 2.
  Cluster cluster = cluster_7b(8, 6449);
  cluster.costs.heads = 6;
  cluster.degrees = {1, 2};
  const PlannedBatch planned = plan_by_milp(cluster, Lengths{4096}, {}, 5);
  ASSERT_EQ(planned.microbatches.size(), 1u);
  const BatchPlan plan = planned.plan();
  EXPECT_EQ(problem_of(plan, {1, 8, 6}), "");
  const std::vector<SequenceGroup> expected{{2, 0, {0}}, {2, 2, {}}, {2, 4, {}}, {2, 6, {}}};
  EXPECT_EQ(plan.microbatches[0], expected);
}

}  // namespace
}  // namespace sluice::flexsp
