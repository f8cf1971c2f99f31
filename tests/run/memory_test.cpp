// Memory before a run: what schedules take of 1F1B's stash, and the tensors between stages.
#include "sluice/run/memory.h"

#include <gtest/gtest.h>

#include "sluice/cost/buffers.h"
#include "sluice/run/op_costs.h"
#include "sluice/run/workspace.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"
#include "support/plans.h"

namespace sluice {
namespace {

struct Case {
  std::string schedule;
  int slices = 1;
  double cap = 0;
  double most = 1;  // of 1F1B's peak
};

Schedule lowered_schedule(const Case& c, int devices, int microbatches) {
  GeneratorOptions options;
  options.devices = devices;
  options.microbatches = microbatches;
  options.slices = c.slices;
  if (c.cap > 0) options.memory_cap = c.cap;
  Validation validation = validate(generate_schedule(c.schedule, options));
  EXPECT_TRUE(validation.valid());
  return std::move(validation.lowered);
}

// Four or more layers on each of eight devices, a large vocabulary, microbatches of one sequence.
RunPlan large_model(ModelFamily family, const Schedule& schedule) {
  ModelShape shape;
  shape.family = family;
  shape.layers = 32;
  shape.dim = 4096;
  shape.heads = 32;
  shape.kv_heads = family == ModelFamily::llama ? 8 : 32;
  shape.ffn_dim = family == ModelFamily::llama ? 14336 : 16384;
  shape.vocab_size = 128256;
  shape.positions = family == ModelFamily::llama ? 0 : 4096;
  RunPlan plan = test::plan_for(shape, schedule, 4096, schedule.num_microbatches);
  plan.config.training.dtype = NumberType::bfloat16;
  return plan;
}

enum class HeadStash { left_out, counted, none_after_forward };

// The largest stash of a device.
double peak_bytes(const Case& c, ModelFamily family, HeadStash head) {
  const Schedule schedule = lowered_schedule(c, 8, 16);
  RunPlan plan = large_model(family, schedule);
  if (head == HeadStash::none_after_forward) plan.config.cluster.device = DeviceKind::cuda;
  EXPECT_EQ(plan.head_in_forward(), head == HeadStash::none_after_forward);
  const Costs costs = byte_costs(plan);
  if (head != HeadStash::left_out) return simulate(schedule, costs).max_peak_bytes;
  // Every stage as those between the ends.
  std::vector<OpCosts> table;
  for (int stage = 0; stage < schedule.num_stages(); ++stage)
    for (int slice = 0; slice < schedule.num_slices; ++slice)
      table.push_back(costs.at(1, slice));
  Costs layers(schedule.num_stages(), schedule.num_slices, std::move(table));
  layers.measured = true;
  return simulate(schedule, layers).max_peak_bytes;
}

TEST(Memory, SchedulesTakeTheirShareOf1F1BsPeak) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama}) {
    const double whole = peak_bytes({"1f1b"}, family, HeadStash::left_out);
    // Its fullest device has no head, and an embedding keeps nothing.
    EXPECT_EQ(peak_bytes({"1f1b"}, family, HeadStash::counted), whole);
    for (const Case& c :
         {Case{"v-half", 1, 0, 0.625}, Case{"v-min", 1, 0, 0.5}, Case{"adaptive-v", 1, 9, 0.5625},
          Case{"seq1f1b", 4, 0, 0.4}, Case{"zb-v", 4, 0, 0.4}, Case{"zb-v", 8, 0, 0.3}}) {
      SCOPED_TRACE(testing::Message() << c.schedule << " with " << c.slices << " slices");
      EXPECT_LE(peak_bytes(c, family, HeadStash::left_out) / whole, c.most);
      EXPECT_LE(peak_bytes(c, family, HeadStash::none_after_forward) / whole, c.most);
      // In a V the first device holds the head, whose stash 1F1B's fullest device does not have.
      EXPECT_LE(peak_bytes(c, family, HeadStash::counted) / whole, c.most + 0.006);
    }
  }
}

TEST(Memory, SlicesWithoutSizesAreEqualToAToken) {
  Config config;
  config.parallelism.pipeline_parallel_degree = 4;
  config.parallelism.num_microbatches = 8;
  config.training.sequence_length = 10;
  config.training.global_batch_size = 3 * 8;
  const RunPlan plan = make_plan(resolve_config(config), lowered_schedule({"seq1f1b", 4}, 4, 8));
  std::vector<std::int64_t> tokens;
  for (int slice = 0; slice < 4; ++slice)
    tokens.push_back(plan.largest_share(slice).tokens);
  EXPECT_EQ(tokens, (std::vector<std::int64_t>{9, 9, 6, 6}));
  EXPECT_EQ(plan.slice_bounds(), (std::vector<std::int64_t>{0, 3, 6, 8, 10}));
}

// What the allocator of an H200 saw at its peak, training a 1.35B Llama on one rank
// (docs/benchmarks/h200.md): weights, gradients, states, stash and temporaries add up to it.
TEST(Workspace, OfAGpuIsWhatAnH200Saw) {
  struct Run {
    std::int64_t length, sequences;
    RecomputeLevel level;
    bool narrow;  // gradients and states
    double gibibytes;
  };
  ModelShape shape;
  shape.family = ModelFamily::llama;
  shape.layers = 24;
  shape.dim = 2048;
  shape.heads = shape.kv_heads = 16;
  shape.ffn_dim = 5504;
  shape.vocab_size = 32000;
  for (const Run& run : {Run{4096, 8, RecomputeLevel::none, true, 59.6},
                         Run{4096, 8, RecomputeLevel::none, false, 72.1},
                         Run{32768, 1, RecomputeLevel::none, true, 59.6},
                         Run{131072, 1, RecomputeLevel::mlp, true, 86.8},
                         Run{524288, 1, RecomputeLevel::all_but_attention, true, 133.1}}) {
    RunPlan plan =
        test::plan_for(shape, lowered_schedule({"1f1b"}, 1, 1), run.length, run.sequences);
    plan.config.cluster.device = DeviceKind::cuda;
    plan.config.recompute.level = run.level;
    plan.config.training.dtype = NumberType::bfloat16;
    plan.config.training.gradient_dtype = plan.config.optimizer.state_dtype =
        run.narrow ? NumberType::bfloat16 : NumberType::float32;
    plan.config.optimizer.master_weights = !run.narrow;
    const int stages[] = {0};
    const double stash = simulate(plan.schedule, byte_costs(plan)).max_peak_bytes;
    const double sure = static_cast<double>(weight_bytes(plan, 0).total()) + stash;
    const auto workspace = static_cast<double>(workspace_bytes(plan, stages));
    const double measured = run.gibibytes * (1 << 30);
    EXPECT_NEAR(sure + workspace, measured, 0.02 * measured) << run.length;
    EXPECT_NEAR(workspace, measured - sure, 0.25 * (measured - sure)) << run.length;
  }
}

std::vector<std::int64_t> buffers_of(const Case& c, int devices, int microbatches) {
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(microbatches * c.slices), 1);
  return peak_buffer_bytes(lowered_schedule(c, devices, microbatches), sizes);
}

TEST(Buffers, CountWhatMayBeBetweenStages) {
  using Counts = std::vector<std::int64_t>;
  // One stage has the gradient that the loss gives back; two on one device hold an activation and a
  // gradient.
  EXPECT_EQ(buffers_of({"1f1b"}, 1, 4), (Counts{1}));
  EXPECT_EQ(buffers_of({"gpipe"}, 1, 4), (Counts{4}));
  EXPECT_EQ(buffers_of({"zb-v"}, 1, 4), (Counts{2}));
  // Device 0 sends both activations before the first gradient, for which a receive is posted,
  // proves that one has arrived. Device 1 makes the first gradient with the second activation
  // there, and the second gradient before anything proves that the first has arrived.
  Validation two = validate(read_schedule("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"));
  ASSERT_TRUE(two.valid());
  const std::int64_t one[] = {1, 1};
  EXPECT_EQ(peak_buffer_bytes(two.lowered, one), (Counts{3, 2}));
  // Of unequal microbatches each counts as what it is: both activations and the gradient of the
  // first, or the second's activation and gradient.
  const std::int64_t growing[] = {1, 10}, shrinking[] = {10, 1};
  EXPECT_EQ(peak_buffer_bytes(two.lowered, growing)[0], 10 + 10);
  EXPECT_EQ(peak_buffer_bytes(two.lowered, shrinking)[0], 10 + 1 + 10);
  // Nothing comes back to the first device of GPipe before it has sent everything.
  EXPECT_GE(buffers_of({"gpipe"}, 4, 16)[0], 16);
  // 1F1B does not hold more with more microbatches.
  EXPECT_EQ(buffers_of({"1f1b"}, 8, 32), buffers_of({"1f1b"}, 8, 16));
}

TEST(Buffers, GrowWithTheSlice) {
  const Schedule schedule = lowered_schedule({"seq1f1b", 2}, 2, 4);
  const std::int64_t small[] = {1, 1, 1, 1, 1, 1, 1, 1}, mixed[] = {10, 1, 10, 1, 10, 1, 10, 1},
                     large[] = {10, 10, 10, 10, 10, 10, 10, 10};
  const auto least = peak_buffer_bytes(schedule, small), most = peak_buffer_bytes(schedule, large);
  const auto between = peak_buffer_bytes(schedule, mixed);
  for (std::size_t d = 0; d < 2; ++d) {
    EXPECT_EQ(most[d], 10 * least[d]);
    EXPECT_LT(between[d], most[d]);
    EXPECT_GT(between[d], least[d]);
  }
}

}  // namespace
}  // namespace sluice
