#include "sluice/plan/plan_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "sluice/base/error.h"
#include "sluice/plan/prediction.h"
#include "sluice/plan/run_memory.h"
#include "sluice/run/op_costs.h"
#include "sluice/sim/simulate.h"
#include "support/plans.h"

namespace sluice {
namespace {

Config on_four_devices(const std::string& schedule) {
  return test::small_config({.schedule = schedule,
                             .layers = 16,
                             .dim = 64,
                             .heads = 4,
                             .sequence_length = 64,
                             .global_batch_size = 16,
                             .devices = 4});
}

double largest_mib(const RunPlan& plan) {
  std::int64_t largest = 0;
  for (const RankMemory& rank : memory_by_rank(plan))
    largest = std::max(largest, rank.total());
  return static_cast<double>(largest) / (1 << 20);
}

double makespan(const PlannedRun& run) {
  return simulate(run.plan.schedule, costs_of_parts(run.times.parts, run.plan)).makespan;
}

std::string error_of(const Config& config) {
  try {
    plan_run(config);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

double number_at_the_end(const std::string& text) {
  return std::stod(text.substr(text.rfind(' ') + 1));
}

TEST(PlanRun, AScheduleThatCannotBeMadeIsToldInKeysOfTheConfiguration) {
  Config config = on_four_devices("dualpipe");
  config.parallelism.num_microbatches = 4;
  EXPECT_EQ(error_of(config),
            "parallelism.num_microbatches is 4: dualpipe needs an even number of at least 2p = 8 "
            "on 4 devices");
  config = on_four_devices("interleaved-1f1b");
  config.parallelism.group_size = 3;
  EXPECT_EQ(error_of(config),
            "parallelism.group_size is 3: interleaved-1f1b needs p <= N <= m with m mod N zero or "
            "at least p (p = 4, m = 16); 4 works, or leave the key out");
}

// Wherever v-half fits, adaptive-v is at least as fast; and no device ever needs more than its cap.
TEST(PlanRun, AdaptiveVKeepsToACapInMebibytesAndIsAsFastAsVHalf) {
  int planned = 0, against_v_half = 0;
  for (const RecomputeLevel level : {RecomputeLevel::none, RecomputeLevel::full})
    for (const int microbatches : {8, 16})
      for (const LayerRule rule : {LayerRule::even, LayerRule::automatic}) {
        Config half = on_four_devices("v-half");
        half.recompute.level = level;
        half.parallelism.num_microbatches = microbatches;
        half.parallelism.layers_per_stage.rule = rule;
        const PlannedRun v_half = plan_run(half);
        Config config = half;
        config.parallelism.pipeline_parallel_schedule = "adaptive-v";
        config.parallelism.device_memory_mib = {0.001};
        const std::string refused = error_of(config);
        ASSERT_NE(refused.find("device_memory_mib is 0.001: no order of adaptive-v fits; the "
                               "least possible is "),
                  std::string::npos)
            << refused;
        const double least = number_at_the_end(refused);
        const double needs = largest_mib(v_half.plan);
        double before = std::numeric_limits<double>::infinity();
        for (const double cap : {least, (least + needs) / 2, needs + 0.01, 1.5 * needs, 1e6}) {
          config.parallelism.device_memory_mib = {cap};
          const PlannedRun run = plan_run(config);
          EXPECT_LE(largest_mib(run.plan), cap);
          const double time = makespan(run);
          EXPECT_LE(time, before * (1 + 1e-9)) << "cap " << cap;
          before = time;
          ++planned;
          if (cap < needs || v_half.plan.layers_per_stage != run.plan.layers_per_stage) continue;
          EXPECT_LE(time, makespan(v_half) * (1 + 1e-9));
          ++against_v_half;
        }
        config.parallelism.device_memory_mib = {0.97 * least};
        EXPECT_NE(error_of(config), "");
      }
  EXPECT_EQ(planned, 40);
  EXPECT_GE(against_v_half, 12);
}

// A layer that is computed again holds more from I on, so fewer activations may need more bytes.
TEST(PlanRun, ALargerCapIsNoSlowerWhereAStashGrowsAtI) {
  Config config = on_four_devices("adaptive-v");
  config.model.layers = 120;
  config.recompute.level = RecomputeLevel::full;
  config.training.sequence_length = 256;
  config.training.global_batch_size = config.parallelism.num_microbatches = 24;
  double before = std::numeric_limits<double>::infinity();
  for (const double cap : {60, 70, 85, 90, 100, 140}) {
    config.parallelism.device_memory_mib = {cap};
    const double time = makespan(plan_run(config));
    EXPECT_LE(time, before * (1 + 1e-9)) << "cap " << cap;
    before = time;
  }
}

TEST(PlanRun, ZbKeepsToACapInMebibytes) {
  Config config = on_four_devices("zb");
  config.parallelism.device_memory_mib = {1e6};
  const double most = largest_mib(plan_run(config).plan);
  config.parallelism.device_memory_mib = {0.001};
  const double least = number_at_the_end(error_of(config));
  ASSERT_LT(least, most);
  for (const double cap : {least, (least + most) / 2, most}) {
    config.parallelism.device_memory_mib = {cap};
    EXPECT_LE(largest_mib(plan_run(config).plan), cap);
  }
}

TEST(PlanRun, EachDeviceMayHaveACapOfItsOwn) {
  Config config = on_four_devices("adaptive-v");
  config.parallelism.device_memory_mib = {1e6};
  const std::vector<RankMemory> loose = memory_by_rank(plan_run(config).plan);
  std::vector<double> caps;
  for (const RankMemory& rank : loose)
    caps.push_back(static_cast<double>(rank.total()) / (1 << 20));
  caps[3] *= 0.95;  // the last device has less
  config.parallelism.device_memory_mib = caps;
  const std::vector<RankMemory> tight = memory_by_rank(plan_run(config).plan);
  for (std::size_t d = 0; d < caps.size(); ++d)
    EXPECT_LE(static_cast<double>(tight[d].total()) / (1 << 20), caps[d]) << d;
  config.parallelism.device_memory_mib = {1, 1, 1};
  EXPECT_EQ(
      error_of(config),
      "parallelism.device_memory_mib lists 3 caps, and parallelism.pipeline_parallel_degree is "
      "4: give one number, or one per device");
  config.parallelism.device_memory_mib = {0.5, 0.5, 0.5, 0.25};
  EXPECT_NE(
      error_of(config).find("lists 4 caps: no order of adaptive-v fits them; each has to be "),
      std::string::npos)
      << error_of(config);
  config.parallelism.memory_cap = 4;
  EXPECT_NE(error_of(config).find("both cap the memory of a device; leave one out"),
            std::string::npos);
}

TEST(PlanRun, BalancedSlicesAreOfEqualWorkAndOneSetForAllSchedules) {
  Config config = on_four_devices("seq1f1b");
  config.model.layers = 16;
  config.training.sequence_length = 1024;
  config.parallelism.slices = 4;
  config.parallelism.slice_sizes.rule = SliceRule::balanced;
  const std::vector<std::int64_t> sizes = plan_run(config).plan.schedule.slice_sizes;
  ASSERT_EQ(sizes.size(), 4U);
  EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}), 1024);
  EXPECT_GT(sizes[0], sizes[1]);
  EXPECT_GT(sizes[2], sizes[3]);
  for (const char* schedule : {"zb-v", "v-half", "seq1f1b"}) {
    config.parallelism.pipeline_parallel_schedule = schedule;
    EXPECT_EQ(plan_run(config).plan.schedule.slice_sizes, sizes) << schedule;
  }
  config.parallelism.slice_multiple = 64;
  for (const std::int64_t size : plan_run(config).plan.schedule.slice_sizes)
    EXPECT_EQ(size % 64, 0);
  config.parallelism.slices = 1;
  EXPECT_NE(
      error_of(config).find("parallelism.slice_sizes is balanced and parallelism.slices is 1"),
      std::string::npos);
  config.parallelism.slices = 4;
  config.parallelism.slice_sizes.rule = SliceRule::even;
  EXPECT_NE(error_of(config).find("parallelism.slice_multiple is 64 and parallelism.slice_sizes is "
                                  "even"),
            std::string::npos);
}

// A step at the peak: FLOPs over FLOP/s and the bubble's share.
TEST(PlanRun, ThePeakAloneBoundsTheTimeOfAStep) {
  Config config = on_four_devices("1f1b");
  EXPECT_FALSE(predict(plan_run(config)).step_s);
  config.cluster.peak_tflops = 0.001;
  const Prediction prediction = predict(plan_run(config));
  ASSERT_TRUE(prediction.step_s && prediction.mfu && prediction.days && prediction.tokens_per_s);
  EXPECT_TRUE(prediction.lower_bound);
  EXPECT_DOUBLE_EQ(*prediction.tokens_per_s, 16 * 64 / *prediction.step_s);
  EXPECT_DOUBLE_EQ(*prediction.days, *prediction.step_s * 1000 / 86400);
  // Attention's backward computes scores again, and the head its logits: MFU does not count them.
  EXPECT_LT(*prediction.mfu, 1 - prediction.bubble);
  EXPECT_GT(*prediction.mfu, 0.8 * (1 - prediction.bubble));
  config.cluster.peak_tflops = 0.002;
  EXPECT_DOUBLE_EQ(*predict(plan_run(config)).step_s, *prediction.step_s / 2);
}

}  // namespace
}  // namespace sluice
