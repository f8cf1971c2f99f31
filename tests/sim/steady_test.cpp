// What one more window takes, where the windows settle into a rhythm of one or of several.
#include "sluice/sim/steady.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "sluice/schedule/generators/generator.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

struct Case {
  const char* schedule;
  int devices, microbatches, windows;
  OpTimes times;
  double comm = 0;
  bool fused = false;
  AmdpOrder order = AmdpOrder::automatic;
};

Schedule made(const Case& c) {
  GeneratorOptions options;
  options.devices = c.devices;
  options.microbatches = c.microbatches;
  options.windows = c.windows;
  options.asynchronous.order = c.order;
  options.asynchronous.fused = c.fused;
  return generate_schedule(c.schedule, options);
}

std::optional<SteadyWindow> steady(const Case& c) {
  const Schedule schedule = made(c);
  const Costs costs = unit_costs(schedule, c.times, c.comm, 1);
  return steady_window(schedule, costs, {}, simulate(schedule, costs));
}

TEST(SteadyWindow, IsTheMeanOfThoseAfterWhichTheTimesRepeat) {
  struct Known {
    Case of;
    int period;
    double added;
  };
  const Known known[] = {
      {{"amdp", 3, 2, 16, {1, 0.5, 1.3}, 0.1, false, AmdpOrder::r}, 2, (5.8 + 5.9) / 2},
      {{"pipedream", 2, 5, 16, {}, 1, true}, 2, (19 + 21) / 2.0},
      {{"async-1f1b", 6, 9, 16, {2, 0.5, 1.3}, 1}, 2, (39.8 + 39.1) / 2},
      {{"amdp", 4, 8, 3, {}, 0, false, AmdpOrder::r}, 1, 24}};
  for (const auto& [of, period, added] : known) {
    SCOPED_TRACE(of.schedule);
    const auto window = steady(of);
    ASSERT_TRUE(window);
    EXPECT_EQ(window->period, period);
    EXPECT_NEAR(window->added, added, 1e-9);
    EXPECT_LE(window->utilisation(), 1);
  }
}

// They add 23, 3, 4, 4, 4, 4, 4, 3, 4, ...: 4 is no rhythm, however often it comes in a row.
TEST(SteadyWindow, IsNotSeenInWindowsThatHappenToBeAlike) {
  for (int windows = 1; windows <= 40; ++windows) {
    SCOPED_TRACE(windows);
    const auto window = steady({"pipedream", 6, 1, windows, {}, 1});
    EXPECT_EQ(window.has_value(), windows > 18);
    if (window) {
      EXPECT_EQ(window->period, 6);
      EXPECT_NEAR(window->added, 23.0 / 6, 1e-9);
    }
  }
}

// Every stage has times of its own, as a profile gives them: nothing repeats to the last digit.
TEST(SteadyWindow, IsFoundForMeasuredTimes) {
  std::mt19937 random(7);
  const auto about = [&](double time) {
    return time * std::uniform_real_distribution<>(0.95, 1.05)(random);
  };
  for (const char* name : {"amdp", "async-1f1b", "pipedream-2bw"})
    for (int trial = 0; trial < 5; ++trial) {
      SCOPED_TRACE(fmt::format("{} {}", name, trial));
      const Schedule schedule = made({name, 4, 8, 16, {}});
      Costs costs = unit_costs(schedule, {}, 0, 1);
      for (int stage = 0; stage < 4; ++stage) {
        OpCosts& op = costs.at(stage, 0);
        op.f = about(0.010);
        op.i = about(0.011);
        op.w = about(0.009);
        op.b = op.i + op.w;
        costs.update.push_back(about(0.003));
      }
      costs.default_link = {about(2e-4), 0};
      const auto window = steady_window(schedule, costs, {}, simulate(schedule, costs));
      ASSERT_TRUE(window);
      EXPECT_GT(window->utilisation(), 0.8);
      EXPECT_LE(window->utilisation(), 1 + 1e-3);
      EXPECT_NEAR(mean_window(schedule, costs).added, window->added, 1e-12);
    }
}

TEST(SteadyWindow, HasAMeanBeforeItIsReached) {
  const Schedule schedule = made({"pipedream", 6, 1, 8, {}, 1});
  const Costs costs = unit_costs(schedule, {}, 1, 1);
  const Simulation whole = simulate(schedule, costs);
  ASSERT_FALSE(steady_window(schedule, costs, {}, whole));
  EXPECT_EQ(mean_window(schedule, costs).added, (4 + 4 + 4 + 3) / 4.0);
}

}  // namespace
}  // namespace sluice
