// What plans the batches of a run: how many tokens its ranks may have, numbers of microbatches and
// their order in a pipeline, strategies.
#include "sluice/plan/flexsp/run_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "sluice/base/error.h"
#include "sluice/plan/flexsp/baselines.h"
#include "sluice/plan/flexsp/pipelined.h"
#include "sluice/plan/flexsp/run_cluster.h"
#include "sluice/plan/run_memory.h"
#include "sluice/plan/searched_schedule.h"
#include "support/golden.h"
#include "support/plans.h"
#include "support/run_sluice.h"

namespace sluice::flexsp {
namespace {

const std::vector<std::int64_t> kLengths = {512, 300, 290, 120, 100, 90, 60, 40,
                                            33,  30,  20,  12,  9,   5,  3,  1};

class FlexspRun : public testing::Test {
 protected:
  FlexspRun() {
    folder_.write("costs.json", R"({"schema": 1,
      "stages": [{"F": [1e-3], "I": [1e-3], "W": [1e-3], "layers": 8}],
      "flexsp": {"a1": 1e-6, "a2": 1e-5, "b1": 1e-3, "stash_bytes_per_token": 100,
        "state_bytes": 1000, "all_to_all_bytes_per_token": 2048,
        "bytes_per_s": {"2": 1e9, "4": 5e8}, "heads": 8}})");
  }

  // 4 data ranks.
  Config config(const std::string& schedule = "1f1b", int devices = 1) const {
    Config config = test::small_config({.schedule = schedule,
                                        .heads = 8,
                                        .sequence_length = 512,
                                        .global_batch_size = 16,
                                        .devices = devices,
                                        .microbatches = 4});
    config.data.packing = Packing::sequences;
    config.parallelism.data_parallel_shard_degree = 4;
    config.parallelism.costs = folder_.path() + "/costs.json";
    config.flexsp.enabled = true;
    return config;
  }

  test::TemporaryFolder folder_;
};

std::int64_t total_with(const RunPlan& plan, const TokenShare& share) {
  RunPlan with = plan;
  with.most_planned = share;
  with.peak_stash_bytes = predicted_peaks(with);
  std::int64_t most = 0;
  for (const RankMemory& rank : memory_by_rank(with))
    most = std::max(most, rank.total());
  return most;
}

TEST_F(FlexspRun, ARankHasAsManyTokensAsItsCapLeavesRoomForAndNotOneMore) {
  Config capped = config("zb-h1", 2);
  capped.parallelism.device_memory_mib = {3};
  const RunPlan plan = plan_run(capped).plan;
  ASSERT_TRUE(plan.most_planned);
  const TokenShare most = *plan.most_planned;
  EXPECT_EQ(most.degree, 4);
  EXPECT_GT(most.tokens, 32);
  EXPECT_LE(total_with(plan, most), 3 << 20);
  EXPECT_GT(total_with(plan, {most.tokens + 1, most.degree}), 3 << 20);
  // Without a cap as many as it would be dealt.
  EXPECT_EQ(plan_run(config()).plan.most_planned->tokens, 512);
}

TEST_F(FlexspRun, PlansAreValidEqualForEqualLengthsAndWithinTheCap) {
  for (const int devices : {1, 2}) {
    Config capped = config("1f1b", devices);
    capped.parallelism.device_memory_mib = {devices == 1 ? 6.0 : 4.5};
    const PlannedRun run = plan_run(capped);
    const BatchPlanner::Planned planned = run_planner(run)->plan(kLengths);
    EXPECT_EQ(problem_of(planned.plan, run.plan.batch_limits()), "");
    EXPECT_EQ(run_planner(run)->plan(kLengths).plan, planned.plan);
    EXPECT_GT(planned.seconds, 0);
    RunPlan step = run.plan;
    step.schedule = run_planner(run)->schedule(planned.plan.num_microbatches());
    for (int rank = 0; rank < 4; ++rank) {
      step.shares = token_shares(planned.plan, kLengths, rank, 1);
      for (const TokenShare& share : step.shares)
        EXPECT_LE(share.tokens, run.plan.most_planned->tokens);
      const std::vector<std::int64_t> peaks = predicted_peaks(step);
      for (std::size_t d = 0; d < peaks.size(); ++d)
        EXPECT_LE(peaks[d], run.plan.peak_stash_bytes[d]);
    }
  }
}

// The memory is worked out for one microbatch at a time, and the first stage keeps two.
TEST_F(FlexspRun, ManyMicrobatchesAtOnceAreSmallerOnes) {
  Config all = config("1f1b", 2);
  all.parallelism.num_microbatches = 1;
  all.parallelism.device_memory_mib = {4.5};
  const PlannedRun run = plan_run(all);
  const auto planner = run_planner(run);
  const BatchPlan plan = planner->plan(kLengths).plan;
  EXPECT_EQ(problem_of(plan, run.plan.batch_limits()), "");
  EXPECT_GE(plan.num_microbatches(), 2);
  RunPlan step = run.plan;
  step.schedule = planner->schedule(plan.num_microbatches());
  for (int rank = 0; rank < 4; ++rank) {
    step.shares = token_shares(plan, kLengths, rank, 1);
    const std::vector<std::int64_t> peaks = predicted_peaks(step);
    for (std::size_t d = 0; d < peaks.size(); ++d)
      EXPECT_LE(peaks[d], run.plan.peak_stash_bytes[d]);
  }
}

TEST_F(FlexspRun, OnlyNumbersOfMicrobatchesThatTheScheduleTakesArePlanned) {
  Config v = config("dualpipe-v", 2);
  const PlannedRun run = plan_run(v);
  const auto planner = run_planner(run);
  const BatchPlan plan = planner->plan(std::vector<std::int64_t>{40, 30, 20}).plan;
  EXPECT_EQ(plan.num_microbatches(), 4);  // one more than there are sequences
  EXPECT_EQ(planner->schedule(4).num_microbatches, 4);
  EXPECT_THROW(planner->schedule(1), InternalError);
}

// A run goes by the costs that it began with.
TEST_F(FlexspRun, TheCostsFileIsReadOnce) {
  Config searched = config("zb", 2);
  searched.parallelism.device_memory_mib = {12};
  const PlannedRun run = plan_run(searched);
  const auto planner = run_planner(run), undisturbed = run_planner(run);
  const BatchPlan wanted = undisturbed->plan(kLengths).plan;
  const Schedule seven = undisturbed->schedule(7);
  folder_.write("costs.json", "");
  EXPECT_EQ(planner->schedule(7), seven);
  EXPECT_EQ(planner->plan(kLengths).plan, wanted);
}

TEST_F(FlexspRun, ItsIdentityTellsOtherTimesOfStages) {
  const std::string identity = run_planner(plan_run(config("1f1b", 2)))->identity;
  EXPECT_EQ(run_planner(plan_run(config("1f1b", 2)))->identity, identity);
  std::string costs = test::read_text(folder_.path() + "/costs.json");
  costs.replace(costs.find("1e-3"), 4, "2e-3");
  folder_.write("costs.json", costs);
  EXPECT_NE(run_planner(plan_run(config("1f1b", 2)))->identity, identity);
}

// They pack by memory alone, which leaves a pipeline two microbatches for two devices.
TEST_F(FlexspRun, InAPipelineAStrategyOfOneDegreeChoosesItsNumberOfMicrobatches) {
  Config fixed = config("1f1b", 2);
  fixed.parallelism.num_microbatches = 1;
  fixed.flexsp.strategy = "fixed:2";
  const PlannedRun run = plan_run(fixed);
  const Cluster cluster = run_cluster(run.plan, run.times).cluster;
  const std::vector<std::int64_t> lengths(16, 100);
  const auto packed = fixed_degree(cluster, lengths, 2, 0.9);
  const BatchPlanner::Planned planned = run_planner(run)->plan(lengths);
  EXPECT_GT(planned.plan.num_microbatches(), static_cast<int>(packed->microbatches.size()));
}

TEST_F(FlexspRun, CostsOfOtherLayersPerDeviceOrOtherGathersAreRefused) {
  const std::string costs = test::read_text(folder_.path() + "/costs.json");
  const auto refusal = [&](const std::string& keys, const Config& of) -> std::string {
    std::string with = costs;
    with.replace(with.find("\"heads\": 8"), 10, "\"heads\": 8" + keys);
    folder_.write("costs.json", with);
    try {
      plan_run(of);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(R"(, "device_layers": [4, 4], "parameter_shards": 1)", config("1f1b", 2)), "");
  EXPECT_NE(refusal(R"(, "device_layers": [8])", config("1f1b", 2))
                .find("the layers of each device are 4, 4 and were 8 when its section flexsp was "
                      "measured; measure again"),
            std::string::npos);
  Config sharded = config();
  sharded.parallelism.sharding = Sharding::parameters;
  EXPECT_EQ(refusal(R"(, "device_layers": [8], "parameter_shards": 4)", sharded), "");
  EXPECT_NE(refusal(R"(, "parameter_shards": 1)", sharded)
                .find("4 ranks gather parameters (parallelism.sharding) and none did when"),
            std::string::npos);
}

TEST_F(FlexspRun, StrategiesOfOneDegree) {
  Config fixed = config();
  fixed.flexsp.strategy = "fixed:2";
  for (const auto& groups : run_planner(plan_run(fixed))->plan(kLengths).plan.microbatches)
    for (const SequenceGroup& group : groups)
      EXPECT_EQ(group.degree, 2);
  fixed.flexsp.strategy = "batch-ada";
  const BatchPlan ada = run_planner(plan_run(fixed))->plan(kLengths).plan;
  for (const auto& groups : ada.microbatches)
    for (const SequenceGroup& group : groups)
      EXPECT_EQ(group.degree, ada.microbatches[0][0].degree);
  // 512 tokens do not fit one rank.
  fixed.flexsp.strategy = "fixed:1";
  fixed.parallelism.device_memory_mib = {3};
  EXPECT_THROW(run_planner(plan_run(fixed))->plan(kLengths), UserError);
}

PlannedBatch microbatches_of(std::vector<double> seconds) {
  PlannedBatch batch;
  for (std::size_t m = 0; m < seconds.size(); ++m) {
    PlannedGroup group;
    group.group.sequences = {static_cast<std::int64_t>(m)};
    batch.microbatches.push_back({{group}, seconds[m]});
    batch.seconds += seconds[m];
  }
  return batch;
}

TEST_F(FlexspRun, APipelineTakesTheMakespanOfItsScheduleAndTheBestOrder) {
  Config one = config("gpipe", 2);
  const PlannedRun run = plan_run(one);
  const Pipeline pipeline(run.plan, run.times, [&](int count) -> const Schedule* {
    return count == run.plan.schedule.num_microbatches ? &run.plan.schedule : nullptr;
  });
  const std::vector<std::int64_t> lengths = {8, 8, 8, 8};
  // Equal microbatches on two equal stages but for the head: between 5/8 and 1 of the sum.
  const PlannedBatch equal = microbatches_of({1, 1, 1, 1});
  const double makespan = *pipeline.seconds(equal, lengths);
  EXPECT_GT(makespan, 4);
  EXPECT_LE(makespan, 5);
  EXPECT_FALSE(pipeline.seconds(microbatches_of({1, 1, 1}), lengths));
  // Empty microbatches take nothing.
  const PlannedBatch two = *pipeline.best(std::vector{microbatches_of({2, 2})}, lengths);
  EXPECT_EQ(two.microbatches.size(), 4U);
  EXPECT_LE(two.seconds, 6.0001);
  // No order is better than the one that is chosen.
  const std::vector<double> seconds = {9, 1, 5, 2};
  const PlannedBatch best = *pipeline.best(std::vector{microbatches_of(seconds)}, lengths);
  EXPECT_LT(best.seconds, *pipeline.seconds(microbatches_of(seconds), lengths));
  for (const std::vector<std::size_t>& order : orders_of(seconds)) {
    std::vector<double> ordered;
    for (const std::size_t m : order)
      ordered.push_back(seconds[m]);
    EXPECT_GE(*pipeline.seconds(microbatches_of(ordered), lengths), best.seconds * (1 - 1e-9));
  }
}

TEST(OrdersOf, EachIsAPermutationAndTheGivenOneComesFirst) {
  for (std::size_t count = 0; count < 8; ++count) {
    std::vector<double> seconds;
    for (std::size_t n = 0; n < count; ++n)
      seconds.push_back(static_cast<double>(n * 5 % 7));
    std::vector<std::size_t> given(count);
    std::iota(given.begin(), given.end(), std::size_t{0});
    const auto orders = orders_of(seconds);
    EXPECT_EQ(orders.front(), given);
    for (std::vector<std::size_t> order : orders) {
      std::sort(order.begin(), order.end());
      EXPECT_EQ(order, given);
    }
  }
  const std::vector<double> seconds = {3, 9, 1, 5, 7};
  const auto orders = orders_of(seconds);
  EXPECT_NE(std::find(orders.begin(), orders.end(), std::vector<std::size_t>{2, 3, 1, 4, 0}),
            orders.end());  // 1 5 9 7 3
}

}  // namespace
}  // namespace sluice::flexsp
