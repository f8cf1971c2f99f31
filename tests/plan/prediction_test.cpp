// How fast a run will be, by hand.
#include "sluice/plan/prediction.h"

#include <gtest/gtest.h>

#include "sluice/cost/flops.h"
#include "support/plans.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

// Two devices with four of eight layers each, four microbatches of two sequences of 32 tokens.
Config small_config() { return test::small_config({.microbatches = 4}); }

TEST(Prediction, CountsWhatIsWaitedForWhereNoTimeIsKnown) {
  const Prediction prediction = predict(plan_run(small_config()));
  // Of two equal stages the busier one would wait for one of five; the head makes the last longer.
  EXPECT_GT(prediction.bubble, 0.05);
  EXPECT_LT(prediction.bubble, 0.2);
  EXPECT_FALSE(prediction.step_s || prediction.tokens_per_s || prediction.days || prediction.mfu);
}

TEST(Prediction, GoesByAProfile) {
  const test::TemporaryFolder folder;
  Config config = small_config();
  config.parallelism.costs = folder.write("costs.json", R"({"schema":1,"stages":[
    {"F":[1],"I":[1],"W":[1],"layers":4},{"F":[1],"I":[1],"W":[1],"layers":4}]})");
  Prediction prediction = predict(plan_run(config));
  EXPECT_DOUBLE_EQ(prediction.bubble, 1.0 / 5);
  EXPECT_DOUBLE_EQ(prediction.step_s.value(), 15);
  EXPECT_DOUBLE_EQ(prediction.tokens_per_s.value(), 8 * 32 / 15.0);
  EXPECT_DOUBLE_EQ(prediction.days.value(), 15 * 1000 / 86400.0);
  EXPECT_FALSE(prediction.mfu);
  EXPECT_FALSE(prediction.lower_bound);
  config.cluster.peak_tflops = 1e-6;
  const PlannedRun run = plan_run(config);
  prediction = predict(run);
  EXPECT_DOUBLE_EQ(prediction.step_s.value(), 15);
  EXPECT_DOUBLE_EQ(prediction.mfu.value(),
                   step_flops(run.plan.shape, 8 * 32, 8 * 32 * 32) / (15 * 1e6 * 2));
}

// Neither a peak nor a profile says how long the sequences of a step are.
TEST(Prediction, NoTimeIsPredictedForSequencesOfUnequalLengths) {
  Config config = small_config();
  config.data.packing = Packing::sequences;
  config.cluster.peak_tflops = 2;
  const Prediction prediction = predict(plan_run(config));
  EXPECT_GT(prediction.bubble, 0.05);
  EXPECT_FALSE(prediction.step_s || prediction.tokens_per_s || prediction.days || prediction.mfu);
}

// One rank that is always busy: all that it executes, at the peak.
TEST(Prediction, APeakGivesABound) {
  Config config = small_config();
  config.parallelism.pipeline_parallel_degree = 1;
  config.recompute.level = RecomputeLevel::full;
  config.cluster.peak_tflops = 2;
  const PlannedRun run = plan_run(config);
  const Prediction prediction = predict(run);
  const ModelShape& shape = run.plan.shape;
  const double executed =
      8 * 32 * (8 * block_work(shape, RecomputeLevel::full, 32) + head_work(shape));
  EXPECT_NEAR(prediction.step_s.value(), executed / 2e12, 1e-9 * executed / 2e12);
  EXPECT_NEAR(prediction.mfu.value(), step_flops(shape, 8 * 32, 8 * 32 * 32) / executed, 1e-9);
  EXPECT_TRUE(prediction.lower_bound);
  EXPECT_EQ(prediction.bubble, 0);
}

// Ranks with a GPU each have its peak each; those that share one share it.
TEST(Prediction, RanksOfOneGpuShareItsPeak) {
  Config config = small_config();
  config.cluster.device = DeviceKind::cuda;
  config.cluster.peak_tflops = 2;
  const Prediction shared = predict(plan_run(config));
  config.comm.backend = Backend::nccl;
  const Prediction each = predict(plan_run(config));
  EXPECT_DOUBLE_EQ(shared.step_s.value(), 2 * each.step_s.value());
  EXPECT_DOUBLE_EQ(shared.mfu.value(), each.mfu.value());
  EXPECT_DOUBLE_EQ(shared.bubble, each.bubble);
}

// Four ranks beside the pipeline do a quarter of its work each.
TEST(Prediction, TensorAndDataRanksDivideTheWork) {
  Config config = small_config();
  config.model.vocab_size = 258;
  config.cluster.peak_tflops = 2;
  const Prediction one = predict(plan_run(config));
  config.parallelism.tensor_parallel_degree = 2;
  config.parallelism.data_parallel_shard_degree = 2;
  const Prediction four = predict(plan_run(config));
  EXPECT_DOUBLE_EQ(one.step_s.value(), 4 * four.step_s.value());
  EXPECT_DOUBLE_EQ(one.mfu.value(), four.mfu.value());
}

}  // namespace
}  // namespace sluice
