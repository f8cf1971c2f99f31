// Schedules over slices of the sequence: their formulas over many sizes, times and cuts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sluice/cost/costs.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

GeneratorOptions sized(int devices, int microbatches, int slices) {
  GeneratorOptions options;
  options.devices = devices;
  options.microbatches = microbatches;
  options.slices = slices;
  return options;
}

Simulation priced(const Schedule& schedule, const OpTimes& times = {}) {
  const Validation validation = validate(schedule);
  EXPECT_TRUE(validation.valid()) << validation.problems.front().line();
  return simulate(schedule, unit_costs(schedule, times, 0, 1));
}

TEST(Sliced, GpipeHasTeraPipesBubbleAndHoldsEveryMicrobatch) {
  for (const OpTimes& times : {OpTimes{1, 1, 1}, OpTimes{3, 4, 2}, OpTimes{2, 1, 3}})
    for (int p = 1; p <= 6; ++p)
      for (int m = 1; m <= 2 * p; ++m)
        for (int k = 1; k <= 5; ++k) {
          SCOPED_TRACE(fmt::format("p={} m={} k={} F={}", p, m, k, times.f));
          const Simulation result = priced(generate_schedule("gpipe", sized(p, m, k)), times);
          EXPECT_NEAR(result.bubble, (p - 1) * (times.f + times.i + times.w) / k, 1e-9);
          for (const DeviceResult& device : result.devices)
            EXPECT_NEAR(device.peak_activations, m, 1e-9);
        }
}

TEST(Sliced, VSchedulesHaveThePeakOfTheirFormulaAndNoLongerBubbleThanWithoutSlices) {
  const auto expect = [](const char* name, int p, int whole_peak) {
    for (int m = 1; m <= 2 * p + 1; m += p > 4 ? 2 : 1) {
      const Simulation whole = priced(generate_schedule(name, sized(p, m, 1)));
      for (int k = 2; k <= 5; ++k) {
        SCOPED_TRACE(fmt::format("{} p={} m={} k={}", name, p, m, k));
        const Simulation result = priced(generate_schedule(name, sized(p, m, k)));
        const double peak = (whole_peak + 2.0 * (k - 1)) / k;
        EXPECT_LE(result.max_peak, peak + 1e-9);
        if (m >= p) {
          EXPECT_NEAR(result.max_peak, peak, 1e-9);
        }
        // On two devices V-Half has no bubble at m = 3, but one of a slice with slices.
        if (p != 2) {
          EXPECT_LE(result.span, whole.span + 1e-9);
        }
      }
    }
  };
  for (int p = 1; p <= 9; ++p) {
    expect("v-min", p, 2 * ((p + 4) / 3));
    expect("v-half", p, 2 * ((p + 2) / 2));
    expect("v-zb", p, 2 * p);
  }
}

}  // namespace
}  // namespace sluice
