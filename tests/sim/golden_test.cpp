// Every golden figure and order of tests/data, from the papers' fact sheets and PyTorch.
#include "support/golden.h"

#include <gtest/gtest.h>

#include "sluice/schedule/validate.h"

namespace sluice {
namespace {

const std::string kData = SLUICE_TEST_DATA;

TEST(Golden, EveryFigureIsReproduced) {
  const auto rows = test::read_golden_rows(kData + "/golden");
  ASSERT_GT(rows.size(), 100u);
  for (const test::GoldenRow& row : rows) {
    SCOPED_TRACE(row.where + ": " + row.request.text);
    try {
      const Schedule schedule = test::generate(row.request);
      const Validation validation = validate(schedule);
      ASSERT_TRUE(validation.valid()) << validation.problems.front().line();
      const Simulation simulation = test::price(row.request, schedule);
      for (const auto& [key, expected] : row.expected) {
        std::string actual;
        EXPECT_TRUE(test::matches(key, expected, schedule, simulation, actual))
            << key << " is " << actual << ", expected " << expected;
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(Golden, EveryOrderIsReproduced) {
  const auto orders = test::read_golden_orders(kData + "/orders");
  ASSERT_GT(orders.size(), 10u);
  for (const test::GoldenOrder& order : orders) {
    SCOPED_TRACE(order.where + ": " + order.request.text);
    const Schedule schedule = test::generate(order.request);
    ASSERT_EQ(schedule.programs.size(), order.rows.size());
    for (std::size_t d = 0; d < order.rows.size(); ++d) {
      const std::string& row = order.rows[d];
      if (row == "*") continue;
      const bool native = row.find_first_of(",0123456789") != std::string::npos;
      EXPECT_EQ(native ? schedule.program_text(static_cast<int>(d))
                       : test::letters(schedule, static_cast<int>(d)),
                row)
          << "device " << d;
    }
  }
}

// What runs is the lowered form; it must cost what the compute-only form costs.
TEST(Golden, TheLoweredFormTakesTheSameTime) {
  for (const test::GoldenRow& row : test::read_golden_rows(kData + "/golden")) {
    if (row.request.options.devices > 8) continue;
    SCOPED_TRACE(row.where + ": " + row.request.text);
    const Schedule schedule = test::generate(row.request);
    const Simulation plain = test::price(row.request, schedule);
    const Simulation lowered = test::price(row.request, validate(schedule).lowered);
    EXPECT_EQ(plain.makespan, lowered.makespan);
    EXPECT_EQ(plain.span, lowered.span);
    EXPECT_EQ(plain.max_peak, lowered.max_peak);
  }
}

}  // namespace
}  // namespace sluice
