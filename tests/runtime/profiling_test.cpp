// What ops take on this machine: every op of every schedule is timed, on every backend form.
#include "sluice/runtime/profiling.h"

#include <gtest/gtest.h>

#include <mutex>

#include "sluice/comm/threads/threads.h"
#include "sluice/cost/parameters.h"
#include "sluice/run/op_costs.h"
#include "sluice/runtime/op_timings.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/validate.h"
#include "support/plans.h"

namespace sluice {
namespace {

// Four microbatches of two sequences of 16 tokens.
RunPlan plan_of(const std::string& name, int devices, int slices = 1) {
  GeneratorOptions options;
  options.devices = devices;
  options.microbatches = 4;
  options.slices = slices;
  Validation validation = validate(generate_schedule(name, options));
  EXPECT_TRUE(validation.valid());
  ModelShape shape;
  shape.layers = 8;
  shape.dim = 16;
  shape.heads = shape.kv_heads = 2;
  shape.ffn_dim = 32;
  shape.vocab_size = 64;
  shape.positions = 16;
  return test::plan_for(shape, std::move(validation.lowered), 16, 8);
}

// As every rank saw it.
std::vector<Costs> profile(const RunPlan& plan) {
  std::vector<Costs> all(static_cast<std::size_t>(plan.mesh.size()), Costs(1, 1));
  run_threads(plan.mesh.size(), {}, [&](Communicator& world) {
    all[static_cast<std::size_t>(world.rank())] =
        profile_ops(plan, {}, world, {.rounds = 2, .seconds = 0, .on_progress = {}});
  });
  return all;
}

TEST(Profiling, EveryOpIsTimedAndAllRanksAgree) {
  for (const auto& [name, devices, slices] :
       {std::tuple{"1f1b", 2, 1}, std::tuple{"zb-v", 2, 1}, std::tuple{"seq1f1b", 2, 4},
        std::tuple{"dualpipe", 2, 1}, std::tuple{"1f1b", 1, 1}}) {
    SCOPED_TRACE(name);
    const RunPlan plan = plan_of(name, devices, slices);
    const std::vector<Costs> all = profile(plan);
    const int num_stages = plan.schedule.num_stages();
    for (int stage = 0; stage < num_stages; ++stage)
      for (int slice = 0; slice < slices; ++slice) {
        const OpCosts& op = all[0].at(stage, slice);
        for (const double seconds : {op.f, op.i, op.w, op.b})
          EXPECT_GT(seconds, 0);
        EXPECT_GT(op.after_f, 0);
        EXPECT_EQ(op.sent_forward > 0, stage + 1 < num_stages);
        // Two sequences of 16 / slices tokens, 16 numbers of 4 bytes.
        EXPECT_EQ(op.sent_backward, stage > 0 ? 2048 / slices : 0);
        EXPECT_EQ(all.back().at(stage, slice).w, op.w);
      }
    ASSERT_TRUE(all[0].measured_on);
    EXPECT_EQ(all[0].measured_on->text(),
              "gpt2 of 8 layers, dim 16, 2 heads, 2 kv_heads, ffn_dim 32, vocab_size 64; 2 x 16 "
              "tokens, float32, recompute none, tensor_parallel_degree 1, cpu");
    EXPECT_EQ(all[0].links.size(), devices > 1 ? 2u : 0u);
    EXPECT_EQ(all[0].default_link.latency > 0, devices > 1);
  }
}

// One sequence of 15 tokens at most, of which two tensor ranks have the same share once padded.
TEST(Profiling, UnequalSequencesAreMeasuredAtTheirMost) {
  RunPlan plan = plan_of("zb-v", 2);
  plan.mesh.tensor = 2;
  plan.config.training.sequence_length = 15;
  plan.config.training.global_batch_size = 3;  // and a microbatch without any
  plan.config.data.packing = Packing::sequences;
  for (const bool sequence_norms : {false, true}) {
    plan.config.parallelism.sequence_parallel_norms = sequence_norms;
    const Costs costs = profile(plan)[0];
    for (int stage = 0; stage < 4; ++stage) {
      EXPECT_GT(costs.at(stage, 0).f, 0);
      EXPECT_EQ(costs.at(stage, 0).after_f, byte_costs(plan).at(stage, 0).after_f);
    }
    EXPECT_EQ(costs.measured_on->sequences, 1);
    EXPECT_EQ(costs.num_microbatches(), 0);
  }
}

TEST(Profiling, TensorRanksPlayTheSameRoundsAndDataRanksMeasureTheirLink) {
  RunPlan plan = plan_of("zb-v", 2);
  plan.mesh.shard = plan.mesh.tensor = 2;
  plan.config.training.global_batch_size = 16;
  const Costs costs = profile(plan)[0];
  EXPECT_GT(costs.at(1, 0).w, 0);
  EXPECT_GT(costs.data_link.latency, 0);
  for (int stage = 0; stage < plan.schedule.num_stages(); ++stage) {
    std::int64_t held = 0;
    for (const ParameterShape& parameter : stage_parameters(plan.shape, plan.layers_of(stage)))
      held += parameter.count(2);
    EXPECT_EQ(costs.reduce_bytes(stage), static_cast<double>(4 * held / 2));  // one of two halves
  }
}

// Rank 0 has measured long before rank 1, and must neither leave nor wait for it.
TEST(Profiling, RanksOfUnequalWorkFinishTogether) {
  RunPlan plan = plan_of("1f1b", 2);
  plan.layers_per_stage = {1, 7};
  const std::vector<Costs> all = profile(plan);
  EXPECT_GT(all[1].at(1, 0).b, 0);
}

DeviceTimeline step(double seconds) {
  DeviceTimeline timeline;
  timeline.spans = {{make_op(OpKind::F, 0, 0), 0, seconds},
                    {make_op(OpKind::F, 0, 1), 10, 10 + 3 * seconds},
                    {make_op(OpKind::B, 0, 0), 20, 20 + 4 * seconds}};
  return timeline;
}

TEST(Profiling, TimesAreTheMedianStepsMeanOverMicrobatches) {
  run_threads(2, {}, [&](Communicator& world) {
    OpTimings timings;
    // Two ranks that hold the same stage: their mean, 2 and 4.
    for (const double seconds : {1.0, 100.0, 1.0})
      timings.add(step((world.rank() + 1) * seconds));
    Costs costs(2, 1);
    timings.gather_into(costs, world);
    EXPECT_EQ(costs.at(0, 0).f, 3);
    EXPECT_EQ(costs.at(0, 0).b, 6);
    EXPECT_EQ(costs.at(0, 0).i, 6);  // not measured: all of B
    EXPECT_EQ(costs.at(0, 0).w, 0);
    EXPECT_EQ(costs.at(1, 0).f, 0);
  });
}

}  // namespace
}  // namespace sluice
