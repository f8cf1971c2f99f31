#include "sluice/plan/redeal.h"

#include <gtest/gtest.h>

#include <numeric>

#include "sluice/base/error.h"
#include "sluice/run/op_costs.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/sim/simulate.h"
#include "support/plans.h"

namespace sluice {
namespace {

Schedule schedule_of(const std::string& name, int devices, int slices = 1) {
  GeneratorOptions options;
  options.devices = devices;
  options.microbatches = 8;
  options.slices = slices;
  return generate_schedule(name, options);
}

RunPlan plan_of(const std::vector<std::int64_t>& layers, const Schedule& schedule) {
  ModelShape shape;
  shape.layers = std::accumulate(layers.begin(), layers.end(), std::int64_t{0});
  shape.dim = 64;
  shape.heads = shape.kv_heads = 4;
  shape.ffn_dim = 256;
  shape.vocab_size = 1000;
  shape.positions = 32;
  RunPlan plan = test::plan_for(shape, schedule, 32, schedule.num_microbatches);
  plan.layers_per_stage = layers;
  return plan;
}

// A layer takes 1, 2 and 1, the embedding 0.5, the head 2, 1 and 1.
Costs profile_of(const std::vector<std::int64_t>& layers, const Schedule& schedule) {
  Costs costs = byte_costs(plan_of(layers, schedule));
  costs.layers = layers;
  costs.default_link = {1e-3, 1e6};
  const int last = static_cast<int>(layers.size()) - 1;
  for (int stage = 0; stage <= last; ++stage)
    for (int slice = 0; slice < schedule.num_slices; ++slice) {
      const double share = 1.0 / schedule.num_slices;
      const auto n = static_cast<double>(layers[static_cast<std::size_t>(stage)]);
      OpCosts& op = costs.at(stage, slice);
      op.f = (n + (stage == 0 ? 0.5 : 0) + (stage == last ? 2 : 0)) * share;
      op.i = (2 * n + (stage == last ? 1 : 0)) * share;
      op.w = (n + (stage == last ? 1 : 0)) * share;
      op.b = op.i + op.w;
    }
  return costs;
}

std::string refusal(const Costs& profile, const Schedule& schedule) {
  try {
    redeal(profile, schedule);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

// Stages made of the layers that were dealt cost what a profile of that very split would say: times
// and bytes, with and without slices.
TEST(Redeal, GivesTheCostsOfTheSplitItChooses) {
  for (const int slices : {1, 4}) {
    SCOPED_TRACE(slices);
    const char* linear = slices > 1 ? "seq-zb" : "zb-h1";
    const Schedule from = schedule_of(linear, 3, slices), to = schedule_of("zb-v", 4, slices);
    const Costs dealt = redeal(profile_of({5, 6, 5}, from), to);
    ASSERT_EQ(dealt.num_stages(), 8);
    EXPECT_EQ(std::accumulate(dealt.layers.begin(), dealt.layers.end(), std::int64_t{0}), 16);
    const Costs whole = profile_of(dealt.layers, to);
    for (int stage = 0; stage < 8; ++stage)
      for (int slice = 0; slice < slices; ++slice) {
        const OpCosts &a = dealt.at(stage, slice), &b = whole.at(stage, slice);
        for (const auto field : {&OpCosts::f, &OpCosts::i, &OpCosts::w, &OpCosts::b})
          EXPECT_NEAR(a.*field, b.*field, 1e-12) << stage;
        for (const auto field : {&OpCosts::after_f, &OpCosts::after_i, &OpCosts::kv_gradient,
                                 &OpCosts::sent_forward, &OpCosts::sent_backward})
          EXPECT_DOUBLE_EQ(a.*field, b.*field) << stage;
      }
    EXPECT_EQ(dealt.default_link.bytes_per_time, 1e6);
    EXPECT_EQ(dealt.slice_sizes, whole.slice_sizes);
    // The last device, which holds stages 3 and 4 of the V, has no end to carry.
    EXPECT_LE(dealt.layers[0] + dealt.layers[7], dealt.layers[3] + dealt.layers[4]);
    EXPECT_GT(simulate(to, dealt).makespan, 0);
  }
}

TEST(Redeal, RefusesWhatItCannotDo) {
  const Schedule three = schedule_of("zb-h1", 3), four = schedule_of("1f1b", 4);
  const Costs profile = profile_of({2, 2, 2}, three);
  EXPECT_EQ(refusal(profile, four), "no error");
  Costs changed = profile;
  changed.layers.clear();
  EXPECT_NE(refusal(changed, four).find("no 'layers': measure again"), std::string::npos);
  EXPECT_NE(refusal(profile_of({6}, schedule_of("1f1b", 1)), four).find("one stage cannot tell"),
            std::string::npos);
  EXPECT_EQ(refusal(profile, schedule_of("seq1f1b", 4, 2)),
            "costs: measured with 1 slices of a microbatch, but seq1f1b has 2: profile the same "
            "slices");
  changed = profile;
  changed.unsplit_stage = 1;
  EXPECT_EQ(refusal(changed, four), "no error");  // B is all that 1F1B runs
  EXPECT_NE(refusal(changed, three).find("stages[1] has B alone, but zb-h1 runs"),
            std::string::npos);
  changed = profile;
  changed.contention = {1.5, 1.2, 1};
  EXPECT_EQ(refusal(changed, three), "no error");
  EXPECT_NE(refusal(changed, four).find("contention has 3 numbers, but there are 4 devices"),
            std::string::npos);
  EXPECT_NE(refusal(profile, schedule_of("zb-v", 8)).find("too few for 16 stages"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
