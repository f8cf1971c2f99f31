// Every generator over a sweep of sizes: a valid schedule where it takes the size, a UserError
// elsewhere, never anything else; and where the schedule has a promise, the promise.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "sluice/base/error.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"
#include "support/golden.h"

namespace sluice {
namespace {

struct Size {
  int p, m, v, k;  // devices, microbatches, stages per device, slices
};

// Whether a generator takes a size, as docs/schedules.md says. A memory cap may still be too low.
bool takes(const Generator& generator, const Size& size) {
  const Knobs& knobs = generator.knobs;
  if (!knobs.stages_per_device && size.v != knobs.default_stages_per_device) return false;
  if (!knobs.slices && size.k != 1) return false;
  if (generator.name == "dualpipe-v") return size.m >= 2 * size.p;
  if (generator.name == "dualpipe")
    return size.p % 2 == 0 && size.m % 2 == 0 && size.m >= 2 * size.p;
  // Order R takes as many as it has pipes, rounded A as many as its devices; A and T take no
  // others.
  if (generator.name == "amdp")
    return size.p >= 2 &&
           (size.m % ((size.p + 1) / 2) == 0 || size.m % ((size.p + 3) / 4 * 4) == 0);
  if (generator.name == "pipedream-2bw" || generator.name == "xpipe") return size.m >= size.p;
  if (knobs.block) return size.p == 4;  // the devices of examples/block-v-half.toml
  return true;
}

GeneratorOptions options_of(const Generator& generator, const Size& size) {
  GeneratorOptions options;
  options.devices = size.p;
  options.microbatches = size.m;
  options.stages_per_device = size.v;
  options.slices = size.k;
  options.windows = generator.knobs.windows ? 3 : 1;
  if (generator.knobs.memory_cap) options.memory_cap = 1.5 * size.p;
  if (generator.knobs.block)
    options.block = {
        "v-half", test::read_text(std::string(SLUICE_SOURCE_DIR) + "/examples/block-v-half.toml")};
  return options;
}

void expect_promises(const Schedule& schedule, const GeneratorOptions& options) {
  const Validation validation = validate(schedule);
  ASSERT_TRUE(validation.valid()) << validation.problems.front().line();
  const Simulation sim =
      simulate(schedule, unit_costs(schedule, {1, 1, 1}, 0, 1), {.timeline = true});
  for (const DeviceTimeline& device : sim.timeline.devices)
    EXPECT_NEAR(device.memory.back().value, 0, 1e-9) << "memory is left over";
  for (int d = 0; options.memory_cap && d < options.devices; ++d)
    EXPECT_LE(sim.devices[static_cast<std::size_t>(d)].peak_activations,
              options.memory_cap->of(d) + 1e-9);
  EXPECT_GE(sim.bubble, 0);
  EXPECT_EQ(schedule.num_slices, options.slices);
  EXPECT_EQ(schedule.num_microbatches, options.windows * options.microbatches);
  EXPECT_EQ(schedule.num_windows, options.windows);
}

class EveryGenerator : public testing::TestWithParam<const Generator*> {};

// A size that is refused counts as right only where takes() says so, or where the cap that the
// refusal names is enough.
TEST_P(EveryGenerator, GivesAValidScheduleForEverySizeItTakes) {
  const Generator& generator = *GetParam();
  int valid = 0;
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 3 * p; ++m)
      for (int v = 1; v <= 3; ++v)
        for (int k = 1; k <= 5; ++k) {
          const Size size = {p, m, v, k};
          SCOPED_TRACE(fmt::format("p={} m={} v={} k={}", p, m, v, k));
          GeneratorOptions options = options_of(generator, size);
          Schedule schedule;
          try {
            schedule = generate_schedule(generator, options);
          } catch (const CapTooLow& error) {
            ASSERT_GT(error.enough.least(), options.memory_cap->least()) << error.what();
            options.memory_cap = error.enough;
            ASSERT_NO_THROW(schedule = generate_schedule(generator, options)) << error.what();
          } catch (const UserError& error) {
            ASSERT_FALSE(takes(generator, size)) << error.what();
            ASSERT_GT(std::string(error.what()).size(), 20u);
            continue;
          }
          ASSERT_TRUE(takes(generator, size)) << "not refused";
          expect_promises(schedule, options);
          if (HasFailure()) return;  // one size is enough to see why
          ++valid;
        }
  EXPECT_GT(valid, 0);
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
            Schedule schedule;
            try {
              schedule = generate_schedule(name, options);
            } catch (const CapTooLow&) {
              ASSERT_EQ(best, 1e300) << "a larger cap was refused";
              continue;
            }
            ASSERT_TRUE(validate(schedule).valid());
            const Simulation sim =
                simulate(schedule, unit_costs(schedule, times, 0, keep), {.keep_after_i = keep});
            ASSERT_LE(sim.max_peak, cap + 1e-9);
            EXPECT_LE(sim.span, best * (1 + 1e-9));
            best = sim.span;
          }
          ASSERT_LT(best, 1e300);
        }
}

Simulation priced_as(const GeneratorOptions& options, const Schedule& schedule) {
  const Validation validation = validate(schedule);
  EXPECT_TRUE(validation.valid()) << validation.problems.front().line();
  return simulate(schedule, unit_costs(schedule, options.times, options.comm, options.keep_after_i),
                  {.keep_after_i = options.keep_after_i});
}

// Under caps from too low to more than enough.
void expect_promises_of_slices(GeneratorOptions options) {
  GeneratorOptions whole = options;
  whole.slices = 1;
  whole.slice_sizes.clear();
  for (double cap = 1; cap <= 2 * options.devices + 1; cap += 1.25) {
    SCOPED_TRACE(fmt::format("cap={}", cap));
    options.memory_cap = whole.memory_cap = cap;
    Simulation sliced, unsliced;
    try {
      sliced = priced_as(options, generate_schedule("adaptive-v", options));
    } catch (const CapTooLow& error) {
      EXPECT_THROW(generate_schedule("adaptive-v", whole), CapTooLow) << "fits without slices";
      ASSERT_GT(error.enough.least(), cap);
      options.memory_cap = cap = error.enough.least();
      sliced = priced_as(options, generate_schedule("adaptive-v", options));
    }
    EXPECT_LE(sliced.max_peak, cap * (1 + 1e-9));
    try {
      unsliced = priced_as(whole, generate_schedule("adaptive-v", whole));
    } catch (const CapTooLow&) {
      continue;
    }
    // A short first slice lets the next device start early, and then wait.
    if (options.slice_sizes.empty()) {
      EXPECT_LE(sliced.span, unsliced.span * (1 + 1e-9));
    }
  }
}

TEST(CappedGenerators, KeepTheCapWithSlicesAndAreNoSlowerThanWithoutThem) {
  struct Case {
    OpTimes times;
    double comm;
    double keep_after_i;
  };
  const std::vector<Case> cases = {
      {{1, 1, 1}, 0, 1}, {{3, 4, 2}, 0.3, 1}, {{2, 1, 3}, 0, 0.5}, {{1, 1, 1}, 0, 0}};
  const std::vector<std::vector<std::int64_t>> cuts = {
      {1, 1}, {1, 1, 1}, {1, 1, 1, 1}, {5, 3}, {3000, 1000, 96}};
  for (const Case& c : cases)
    for (const auto& cut : cuts)
      for (int p = 1; p <= 5; ++p)
        for (const int m : {1, p + 1, 2 * p + 1}) {
          GeneratorOptions options;
          options.devices = p;
          options.microbatches = m;
          options.slices = static_cast<int>(cut.size());
          if (cut[0] > 1) options.slice_sizes = cut;
          options.times = c.times;
          options.comm = c.comm;
          options.keep_after_i = c.keep_after_i;
          SCOPED_TRACE(fmt::format("p={} m={} k={} first={} F={} keep={}", p, m, cut.size(), cut[0],
                                   c.times.f, c.keep_after_i));
          expect_promises_of_slices(options);
          if (HasFailure()) return;  // one size is enough to see why
        }
}

void expect_within(const Simulation& sim, const MemoryCap& cap) {
  for (std::size_t d = 0; d < sim.devices.size(); ++d)
    EXPECT_LE(sim.devices[d].peak_activations, cap.of(static_cast<int>(d)) * (1 + 1e-9)) << d;
}

TEST(CappedGenerators, KeepACapForEachDeviceAndAreNoSlowerThanUnderTheLeastForAll) {
  std::mt19937 random(11);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int kept = 0, refused = 0;
  for (int n = 0; n < 200; ++n) {
    GeneratorOptions options;
    options.devices = 1 + below(6);
    options.microbatches = 1 + below(3 * options.devices);
    options.slices = 1 + below(3);
    if (below(3) == 0)
      for (int c = 0; c < options.slices; ++c)
        options.slice_sizes.push_back(1 + below(5));
    options.times = below(2) == 0 ? OpTimes{1, 1, 1} : OpTimes{3, 4, 2};
    options.comm = below(2) * 0.3;
    options.keep_after_i = 1 - 0.3 * below(2);
    std::vector<double> caps;
    for (int d = 0; d < options.devices; ++d)
      caps.push_back(1 + 0.25 * below(8 * options.devices));
    options.memory_cap = caps;
    SCOPED_TRACE(fmt::format(
        "{}: p={} m={} k={} {} caps={}", n, options.devices, options.microbatches, options.slices,
        options.slice_sizes.empty() ? "equal" : "unequal", options.memory_cap->text()));
    Schedule schedule;
    try {
      schedule = generate_schedule("adaptive-v", options);
      ++kept;
    } catch (const CapTooLow& error) {
      ++refused;
      for (int d = 0; d < options.devices; ++d)
        ASSERT_GE(error.enough.of(d), options.memory_cap->of(d));
      options.memory_cap = error.enough;
      schedule = generate_schedule("adaptive-v", options);
    }
    const Simulation each = priced_as(options, schedule);
    expect_within(each, *options.memory_cap);
    if (options.slice_sizes.empty()) {
      options.memory_cap = options.memory_cap->least();
      try {
        EXPECT_LE(each.span,
                  priced_as(options, generate_schedule("adaptive-v", options)).span * (1 + 1e-9));
      } catch (const CapTooLow&) {
      }
    }
    if (HasFailure()) return;  // one case is enough to see why
  }
  EXPECT_GT(kept, 40);
  EXPECT_GT(refused, 40);
}

}  // namespace
}  // namespace sluice
