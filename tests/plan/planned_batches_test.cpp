// What the run plan says of planned batches holds in every planned step, and in a validation.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "sluice/base/error.h"
#include "sluice/plan/device_memory.h"
#include "sluice/plan/plan_run.h"
#include "sluice/plan/run_memory.h"
#include "sluice/plan/searched_schedule.h"
#include "sluice/run/memory.h"
#include "sluice/run/op_costs.h"
#include "sluice/run/step_kinds.h"
#include "sluice/run/step_traffic.h"
#include "sluice/run/workspace.h"
#include "sluice/runtime/planned_batch.h"
#include "support/plans.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

using Groups = std::vector<SequenceGroup>;
using Lengths = std::vector<std::int64_t>;

constexpr int kBatch = 8, kRanks = 4, kLength = 32;

class PlannedSteps : public testing::Test {
 protected:
  // A run on two stages and four data ranks that replays these plans, as steps 1, 2 and so on.
  Config config_of(const std::string& schedule, const std::vector<BatchPlan>& plans) const {
    Config config = test::small_config({.schedule = schedule, .heads = 4});
    config.data.packing = Packing::sequences;
    config.parallelism.data_parallel_shard_degree = kRanks;
    config.model.vocab_size = 256;  // divides, so that all data ranks send as much
    config.validation.interval = 0;
    std::string text;
    for (std::size_t n = 0; n < plans.size(); ++n)
      text += batch_plan_line(static_cast<std::int64_t>(n) + 1, {plans[n], kHash}) + "\n";
    config.flexsp.plan_file = folder_.write("plans.jsonl", text);
    return config;
  }
  std::string error_of(const Config& config) const {
    try {
      plan_run(config);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return error.what();
    }
    return "";
  }

  const std::string kHash = std::string(64, '0');
  test::TemporaryFolder folder_;
};

// Eight sequences, dealt to as many microbatches of groups that are drawn.
BatchPlan drawn_plan(std::mt19937& random, int microbatches) {
  BatchPlan plan;
  plan.microbatches.resize(static_cast<std::size_t>(microbatches));
  std::vector<SequenceGroup*> groups;
  for (Groups& of_microbatch : plan.microbatches) {
    for (int rank = 0; rank < kRanks;) {
      int degree = 1 << (random() % 3);
      while (rank % degree != 0 || rank + degree > kRanks)
        degree /= 2;
      of_microbatch.push_back({degree, rank});
      rank += degree;
    }
    for (SequenceGroup& group : of_microbatch)
      groups.push_back(&group);
  }
  for (std::int64_t n = 0; n < kBatch; ++n)
    groups[random() % groups.size()]->sequences.push_back(n);
  return plan;
}

void expect_inside(const RankMemory& step, const RankMemory& table) {
  EXPECT_LE(step.weights, table.weights);
  EXPECT_LE(step.gradients, table.gradients);
  EXPECT_LE(step.optimizer, table.optimizer);
  EXPECT_LE(step.stash, table.stash);
  EXPECT_LE(step.buffers, table.buffers);
  EXPECT_LE(step.workspace, table.workspace);
  EXPECT_LE(step.reduction, table.reduction);
  const auto moves = [](const Traffic& less, const Traffic& more) {
    for (int kind = 0; kind < kNumTrafficClasses; ++kind)
      EXPECT_LE(less.of(static_cast<TrafficClass>(kind)), more.of(static_cast<TrafficClass>(kind)))
          << traffic_name(static_cast<TrafficClass>(kind));
  };
  moves(step.traffic, table.traffic);
  ASSERT_EQ(step.states_traffic.has_value(), table.states_traffic.has_value());
  if (step.states_traffic) moves(*step.states_traffic, *table.states_traffic);
}

// A rank's step, and what it takes.
RunPlan step_of(const RunPlan& plan, const BatchPlan& batch, const Lengths& lengths, int rank) {
  RunPlan step = plan_of_step(plan, batch, lengths, rank);
  step.peak_stash_bytes = predicted_peaks(step);
  return step;
}

TEST_F(PlannedSteps, NoneNeedsMoreThanTheTable) {
  std::mt19937 random(3);
  for (const char* schedule : {"gpipe", "1f1b", "zb-v", "v-half", "zb-h1"})
    for (const Sharding sharding : {Sharding::states, Sharding::parameters}) {
      SCOPED_TRACE(testing::Message() << schedule << " " << static_cast<int>(sharding));
      std::vector<BatchPlan> plans;
      for (int step = 0; step < 40; ++step)  // more ranks than there are kinds in the table
        plans.push_back(drawn_plan(random, 2 + static_cast<int>(random() % 4)));
      Config config = config_of(schedule, plans);
      config.parallelism.sharding = sharding;
      const RunPlan plan = plan_run(config).plan;
      const std::vector<RankMemory> table = memory_by_rank(plan);
      for (const BatchPlan& batch : plans) {
        Lengths lengths(kBatch);
        for (std::int64_t& length : lengths)
          length = 1 + static_cast<std::int64_t>(random() % kLength);
        for (int rank = 0; rank < kRanks; ++rank) {
          std::vector<RankMemory> step = memory_by_rank(step_of(plan, batch, lengths, rank));
          for (std::size_t d = 0; d < table.size(); ++d) {
            step[d].traffic =
                step_traffic(plan_of_step(plan, batch, lengths, rank), static_cast<int>(d), rank);
            expect_inside(step[d], table[d]);
          }
        }
      }
    }
}

// One microbatch shared by all ranks, and one for each sequence: gpipe keeps all of them.
TEST_F(PlannedSteps, WithMoreMicrobatchesThanTheFirstAreCounted) {
  BatchPlan one{{{{4, 0, {0, 1, 2, 3, 4, 5, 6, 7}}}}}, eight;
  for (std::int64_t n = 0; n < kBatch; ++n)
    eight.microbatches.push_back({{1, 0, {n}}});
  const RunPlan plan = plan_run(config_of("gpipe", {one, eight})).plan;
  const Lengths full(kBatch, kLength);
  const RunPlan first = step_of(plan, one, full, 0), second = step_of(plan, eight, full, 0);
  ASSERT_LT(first.peak_stash_bytes[0], second.peak_stash_bytes[0]);
  // Not more than that, either.
  EXPECT_EQ(plan.peak_stash_bytes, second.peak_stash_bytes);
  EXPECT_EQ(memory_by_rank(plan)[0].buffers,
            std::max(buffer_bytes(first)[0], buffer_bytes(second)[0]));
  EXPECT_EQ(memory_by_rank(plan)[0].traffic.of(TrafficClass::sequence),
            step_traffic(first, 0).of(TrafficClass::sequence));
}

TEST_F(PlannedSteps, OfOneKindAreThePredictionItself) {
  const BatchPlan mixed{{{{4, 0, {0, 5}}}, {{2, 0, {1, 2, 7}}, {1, 2, {3, 4}}, {1, 3, {6}}}}};
  const RunPlan plan = plan_run(config_of("1f1b", {mixed, mixed})).plan;
  std::vector<std::int64_t> most(2, 0);
  for (int rank = 0; rank < kRanks; ++rank) {
    const RunPlan step = step_of(plan, mixed, Lengths(kBatch, kLength), rank);
    for (std::size_t d = 0; d < most.size(); ++d)
      most[d] = std::max(most[d], step.peak_stash_bytes[d]);
  }
  EXPECT_EQ(plan.peak_stash_bytes, most);
  EXPECT_EQ(plan.largest_share(0), (TokenShare{64, 4}));
}

TEST_F(PlannedSteps, AValidationFitsIntoTheTable) {
  // Half a sequence at a time; a validation deals whole ones to the four microbatches.
  BatchPlan shared;
  for (std::int64_t n = 0; n < 4; ++n)
    shared.microbatches.push_back({{4, 0, {2 * n, 2 * n + 1}}});
  Config config = config_of("1f1b", {shared});
  const RunPlan without = plan_run(config).plan;
  config.validation.interval = 1;
  config.data.validation_fraction = 0.1;
  const RunPlan with = plan_run(config).plan;
  RunPlan dealt = with;
  dealt.shares.assign(4, TokenShare(kLength));
  const std::vector<RankMemory> table = memory_by_rank(with), training = memory_by_rank(without);
  for (std::size_t d = 0; d < table.size(); ++d) {
    EXPECT_GE(table[d].workspace, workspace_bytes(dealt, table[d].stages));
    EXPECT_GE(table[d].buffers, buffer_bytes(dealt)[d]);
    EXPECT_EQ(table[d].stash, training[d].stash);
  }
  EXPECT_GT(table[0].buffers, training[0].buffers);
}

TEST_F(PlannedSteps, ManyKindsArePutTogetherIntoListsThatCoverThem) {
  std::mt19937 random(7);
  std::vector<std::vector<TokenShare>> lists;
  for (int n = 0; n < 100; ++n) {
    std::vector<TokenShare>& shares = lists.emplace_back();
    for (int m = 0; m < 3; ++m)
      shares.push_back({static_cast<std::int64_t>(random() % 50), 1 << (random() % 3)});
  }
  EXPECT_EQ(merged_shares(lists, 100), lists);
  for (const std::size_t most : {1U, 7U, 64U}) {
    const auto merged = merged_shares(lists, most);
    ASSERT_EQ(merged.size(), most);
    for (const auto& shares : lists)
      EXPECT_TRUE(std::any_of(merged.begin(), merged.end(), [&](const auto& by) {
        for (std::size_t m = 0; m < shares.size(); ++m)
          if (shares[m].tokens > by[m].tokens || shares[m].degree > by[m].degree) return false;
        return true;
      }));
  }
}

TEST_F(PlannedSteps, OfDifferentNumbersTakeTheTimesOfOneProfile) {
  const BatchPlan two{{{{4, 0, {0, 1, 2, 3}}}, {{4, 0, {4, 5, 6, 7}}}}},
      one{{{{4, 0, {0, 1, 2, 3, 4, 5, 6, 7}}}}};
  for (const char* schedule : {"1f1b", "zb"}) {
    SCOPED_TRACE(schedule);
    Config config = config_of(schedule, {two, one});
    if (schedule == std::string("zb")) config.parallelism.device_memory_mib = {1000};
    const RunPlan plan = plan_run(config).plan;
    Costs costs = byte_costs(plan);
    costs.layers = plan.layers_per_stage;
    costs.measured_on = measured_on(plan);
    config.parallelism.costs = folder_.write("costs.json", costs_to_json(costs));
    EXPECT_EQ(error_of(config), "");
    EXPECT_EQ(plan_run(config).plan.batch_plans->schedules.at(1).num_microbatches, 1);
  }
}

TEST_F(PlannedSteps, AllKeepToACap) {
  std::mt19937 random(5);
  std::vector<BatchPlan> plans;
  for (int step = 0; step < 6; ++step)
    plans.push_back(drawn_plan(random, 2 + step % 3));
  Config config = config_of("adaptive-v", plans);
  const auto largest = [&] {
    std::int64_t most = 0;
    for (const RankMemory& rank : memory_by_rank(plan_run(config).plan))
      most = std::max(most, rank.total());
    return static_cast<double>(most) / (1 << 20);
  };
  config.parallelism.device_memory_mib = {1000};
  const double loose = largest();
  config.parallelism.device_memory_mib = {0.99 * loose};
  EXPECT_LE(largest(), 0.99 * loose);
}

// What layers are dealt by where there are caps.
TEST_F(PlannedSteps, TheBytesOfDealingLayersCoverTheTable) {
  std::mt19937 random(9);
  for (const char* schedule : {"1f1b", "gpipe", "zb-v"}) {
    SCOPED_TRACE(schedule);
    std::vector<BatchPlan> plans;
    for (int step = 0; step < 3; ++step)
      plans.push_back(drawn_plan(random, 4));
    Config config = config_of(schedule, plans);
    config.validation.interval = 1;
    config.data.validation_fraction = 0.1;
    const RunPlan plan = plan_run(config).plan;
    const std::vector<RankMemory> table = memory_by_rank(plan);
    const std::vector<DeviceMemory> bytes = memory_of_devices(plan);
    for (std::size_t d = 0; d < table.size(); ++d) {
      EXPECT_GE(bytes[d].bytes(table[d].layers), static_cast<double>(table[d].total()));
      EXPECT_LE(bytes[d].bytes(table[d].layers), 1.5 * static_cast<double>(table[d].total()));
    }
  }
}

TEST_F(PlannedSteps, ANumberThatTheScheduleRefusesIsToldWithItsStep) {
  BatchPlan two{{{{4, 0, {0, 1, 2, 3}}}, {{4, 0, {4, 5, 6, 7}}}}}, four = two;
  four.microbatches.resize(4);
  const std::string why = "dualpipe-v needs at least 2p = 4 on 2 devices; zb-v takes any number";
  const std::string file = folder_.path() + "/plans.jsonl: step ";
  EXPECT_EQ(error_of(config_of("dualpipe-v", {two, four})), file + "1 has 2 microbatches: " + why);
  EXPECT_EQ(error_of(config_of("dualpipe-v", {four, two})), file + "2 has 2 microbatches: " + why);
}

TEST_F(PlannedSteps, WithoutThemTheNumberIsStillTheirs) {
  BatchPlan four{{{{4, 0, {0, 1, 2, 3}}}, {{4, 0, {4, 5, 6, 7}}}}};
  four.microbatches.resize(4);
  const Config config = config_of("1f1b", {four});
  const RunPlan plan = plan_run(without_batch_plans(config)).plan;
  EXPECT_EQ(plan.batch_plans, nullptr);
  EXPECT_EQ(plan.schedule.num_microbatches, 4);
  EXPECT_EQ(plan.largest_share(0).tokens, plan.sequences() * kLength);
  EXPECT_EQ(measured_on(plan).sequences, measured_on(plan_run(config).plan).sequences);
  Config own = config;
  own.flexsp.plan_file = "not there";
  own.parallelism.num_microbatches = 8;
  EXPECT_EQ(plan_run(without_batch_plans(own)).plan.schedule.num_microbatches, 8);
}

}  // namespace
}  // namespace sluice
