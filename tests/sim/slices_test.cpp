// What slices of unequal work do to a pipeline: Seq1F1B's own figures, and ours for the same
// models.
#include <gtest/gtest.h>

#include "sluice/cost/known_models.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/sim/simulate.h"
#include "support/seq1f1b.h"

namespace sluice {
namespace {

struct Case {
  test::Seq1F1BModel model;
  const char* name;  // of ours
  std::int64_t length;
  int devices, microbatches;
  // Makespan / ideal.
  double even, balanced;          // with Seq1F1B's costs and slices
  double our_even, our_balanced;  // with our FLOPs and multiples of 128
};
const Case kCases[] = {
    {test::kSeq1F1B7B, "gpt-7b", 65536, 4, 16, 1.462, 1.047, 1.491, 1.065},
    {test::kSeq1F1B7B, "gpt-7b", 131072, 4, 16, 1.579, 1.047, 1.602, 1.060},
    {test::kSeq1F1B2B7, "gpt-2.7b", 32768, 8, 32, 1.441, 1.055, 1.472, 1.074},
};

Simulation simulated(const Case& c, const std::vector<std::int64_t>& sizes, const OpTerms& work) {
  GeneratorOptions options;
  options.devices = c.devices;
  options.microbatches = c.microbatches;
  options.slices = 4;
  Schedule schedule = generate_schedule("seq1f1b", options);
  schedule.slice_sizes = sizes;
  const double forward = work.f.of(0, c.length);
  const OpTimes times = {1, work.i.of(0, c.length) / forward, work.w.of(0, c.length) / forward};
  return simulate(schedule, unit_costs(schedule, times, 0, 1, slice_shares(work, sizes)));
}

double over_ideal(const Simulation& simulation) { return simulation.makespan / simulation.ideal; }

// Its slices and its costs: equal stages, B = 2 F.
TEST(SlicedPipeline, TakesAsLongAsSeq1F1BSays) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.model.dim << " wide at " << c.length);
    const WorkTerms forward = c.model.terms();
    const OpTerms work = {forward, forward, forward};
    EXPECT_NEAR(over_ideal(simulated(c, even_slice_sizes(c.length, 4), work)), c.even, 0.0006);
    const Simulation balanced = simulated(c, c.model.slices(c.length, 4), work);
    EXPECT_NEAR(over_ideal(balanced), c.balanced, 0.0006);
    // Our slices by its costs: multiples of 128 cost little.
    const auto ours = balanced_slice_sizes(forward, {.length = c.length, .slices = 4});
    EXPECT_LT(over_ideal(simulated(c, ours, work)), c.balanced + 0.025);
    // The price: the first slice is long.
    const double even_peak = (c.devices + 3) / 4.0;
    EXPECT_GT(balanced.max_peak, even_peak);
    EXPECT_LT(balanced.max_peak, even_peak + 0.36);
  }
}

// Attention's backward takes 2.5 times its forward and a matmul's twice, so no cut balances both,
// and the pipeline waits a little more.
TEST(SlicedPipeline, OfOurOwnFlopsWaitsLittleMore) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.name << " at " << c.length);
    const ModelShape& shape = *known_model(c.name);
    const OpTerms work = model_terms(shape, RecomputeLevel::none);
    const auto sizes =
        balanced_slice_sizes(shape, RecomputeLevel::none, {.length = c.length, .slices = 4});
    EXPECT_NEAR(over_ideal(simulated(c, sizes, work)), c.our_balanced, 0.0006);
    EXPECT_NEAR(over_ideal(simulated(c, even_slice_sizes(c.length, 4), work)), c.our_even, 0.0006);
  }
}

}  // namespace
}  // namespace sluice
