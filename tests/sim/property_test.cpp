// Every generator over a sweep of sizes: a valid schedule or a UserError, never anything else; and
// where the schedule has a promise, the promise.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "schedule/validate.h"
#include "sim/simulate.h"
#include "support/golden.h"

namespace sluice {
namespace {

class EveryGenerator : public testing::TestWithParam<const Generator*> {};

TEST_P(EveryGenerator, GivesAValidScheduleOrAUserError) {
  const Generator& generator = *GetParam();
  int valid = 0, refused = 0;
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 3 * p; ++m)
      for (int v = 1; v <= 3; ++v)
        for (int k = 1; k <= 5; ++k) {
          GeneratorOptions options;
          options.devices = p;
          options.microbatches = m;
          options.stages_per_device = v;
          options.slices = k;
          if (generator.knobs.memory_cap) options.memory_cap = 1.5 * p;
          if (generator.knobs.block)
            options.block = {"v-half", test::read_text(std::string(SLUICE_SOURCE_DIR) +
                                                       "/examples/block-v-half.toml")};
          SCOPED_TRACE(fmt::format("p={} m={} v={} k={}", p, m, v, k));
          try {
            const Schedule schedule = generate_schedule(generator, options);
            const Validation validation = validate(schedule);
            ASSERT_TRUE(validation.valid()) << validation.problems.front().line();
            const Simulation sim =
                simulate(schedule, unit_costs(schedule, {1, 1, 1}, 0, 1), {.timeline = true});
            for (const DeviceTimeline& device : sim.timeline.devices)
              ASSERT_NEAR(device.memory.back().value, 0, 1e-9) << "memory is left over";
            if (generator.knobs.memory_cap) {
              ASSERT_LE(sim.max_peak, *options.memory_cap + 1e-9);
            }
            ASSERT_GE(sim.bubble, 0);
            ASSERT_EQ(schedule.num_slices, k);
            ASSERT_EQ(schedule.num_microbatches, m);
            ++valid;
          } catch (const UserError& error) {
            ASSERT_GT(std::string(error.what()).size(), 20u);
            ++refused;
          }
        }
  EXPECT_GT(valid, 0);
  RecordProperty("valid", valid);
  RecordProperty("refused", refused);
}

std::string test_name(const testing::TestParamInfo<const Generator*>& info) {
  std::string name(info.param->name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Sweep, EveryGenerator, testing::ValuesIn(all_generators()), test_name);

// The searching generators under every cap, with unequal times: the cap is never exceeded, counted
// as the cap counts, and a larger cap is never worse.
TEST(CappedGenerators, NeverExceedTheCap) {
  for (const char* name : {"zb", "adaptive-v"})
    for (const OpTimes times : {OpTimes{1, 1, 1}, OpTimes{3, 4, 2}, OpTimes{10, 10, 7}})
      for (const double keep : {1.0, 0.5, 0.0})
        for (int p = 2; p <= 6; p += 2) {
          double best = 1e300;
          for (double cap = 1; cap <= 2 * p + 1; cap += 0.5) {
            GeneratorOptions options;
            options.devices = p;
            options.microbatches = 3 * p;
            options.memory_cap = cap;
            options.times = times;
            options.keep_after_i = keep;
            SCOPED_TRACE(fmt::format("{} p={} cap={} keep={} times={},{},{}", name, p, cap, keep,
                                     times.f, times.i, times.w));
            try {
              const Schedule schedule = generate_schedule(name, options);
              ASSERT_TRUE(validate(schedule).valid());
              const Simulation sim =
                  simulate(schedule, unit_costs(schedule, times, 0, keep), {.keep_after_i = keep});
              ASSERT_LE(sim.max_peak, cap + 1e-9);
              EXPECT_LE(sim.span, best * (1 + 1e-9));
              best = sim.span;
            } catch (const UserError&) {
              ASSERT_EQ(best, 1e300) << "a larger cap was refused";
            }
          }
          ASSERT_LT(best, 1e300);
        }
}

}  // namespace
}  // namespace sluice
