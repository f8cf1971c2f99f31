// AMDP's makespans and utilisation, by the formulas that its orders are known for.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sluice/schedule/generators/generator.h"
#include "sluice/sim/simulate.h"
#include "sluice/sim/steady.h"

namespace sluice {
namespace {

struct Wanted {
  AmdpOrder order = AmdpOrder::a;
  int devices = 4, microbatches = 4, windows = 1, border = 0;
  bool fused = false;
  OpTimes times = {};
};

Schedule made(const Wanted& wanted) {
  GeneratorOptions options;
  options.devices = wanted.devices;
  options.microbatches = wanted.microbatches;
  options.windows = wanted.windows;
  options.asynchronous.order = wanted.order;
  options.asynchronous.border = wanted.border;
  options.asynchronous.fused = wanted.fused;
  return generate_schedule("amdp", options);
}

double makespan(const Wanted& wanted) {
  const Schedule schedule = made(wanted);
  return simulate(schedule, unit_costs(schedule, wanted.times, 0, 1)).makespan;
}

TEST(AmdpMakespan, OrderAIsThatOfTheFormulas) {
  constexpr bool kFused = true;
  constexpr OpTimes kHalves = {1, 0.5, 0.5};
  for (const int d : {4, 8, 12, 16})
    for (const int b : {1, 2, 3, 4}) {
      SCOPED_TRACE(fmt::format("{} devices, {} blocks", d, b));
      EXPECT_EQ(makespan({AmdpOrder::a, d, d * b, 1, 1, kFused}), (3 * d + 2) * b + 2);
      EXPECT_EQ(makespan({AmdpOrder::a, d, d * b, 1, 2, kFused}), (3 * d + 1) * b + 3);
      EXPECT_EQ(makespan({AmdpOrder::a, d, d * b, 1, 1, kFused, kHalves}), 2 * d * b + 2);
      EXPECT_EQ(makespan({AmdpOrder::a, d, d * b, 1, 1}), 3 * d * b + 2);
    }
}

TEST(AmdpMakespan, OrderRIsThatOfTheFormulas) {
  for (int d = 2; d <= 11; ++d)
    for (const int x : {1, 2, 3, 4}) {
      SCOPED_TRACE(fmt::format("{} devices, {} microbatches for each pipe", d, x));
      const int pipes = (d + d % 2) / 2;
      EXPECT_EQ(makespan({AmdpOrder::r, d, pipes * x}),
                3 * pipes * x + (d % 2 == 0 ? d / 2 + 1 : pipes));
      if (d % 2 == 0 && d >= 4) {
        EXPECT_EQ(makespan({AmdpOrder::r, d, pipes * x, 1, 0, true}), (2 * d - 1) * x + d + 1);
      }
    }
}

double steady_utilisation(const Wanted& wanted) {
  const Schedule schedule = made(wanted);
  const Costs costs = unit_costs(schedule, wanted.times, 0, 1);
  const auto steady = steady_window(schedule, costs, {}, simulate(schedule, costs));
  return steady ? steady->utilisation() : 0;
}

TEST(AmdpMakespan, SteadyUtilisationIsExact) {
  for (const int d : {4, 8, 16}) {
    SCOPED_TRACE(d);
    for (const int blocks : {1, 2}) {
      const double one = 3.0 * d;
      EXPECT_DOUBLE_EQ(steady_utilisation({AmdpOrder::a, d, d * blocks, 5, 2, true}),
                       one / (one + 1));
      EXPECT_DOUBLE_EQ(steady_utilisation({AmdpOrder::a, d, d * blocks, 5, 1, true}),
                       one / (one + 2));
      for (const AmdpOrder order : {AmdpOrder::a, AmdpOrder::r, AmdpOrder::t})
        EXPECT_DOUBLE_EQ(steady_utilisation({order, d, d * blocks, 5}), 1);
    }
  }
}

}  // namespace
}  // namespace sluice
