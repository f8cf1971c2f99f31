// What the golden values of tests/data/golden/adaptive_v.txt cannot say: promises over many caps,
// times and sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/cost/costs.h"
#include "sluice/schedule/generators/adaptive_v_order.h"
#include "sluice/schedule/generators/adaptive_v_player.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

GeneratorOptions sized(int devices, int microbatches) {
  GeneratorOptions options;
  options.devices = devices;
  options.microbatches = microbatches;
  return options;
}

Schedule under_cap(GeneratorOptions options, MemoryCap cap) {
  options.memory_cap = std::move(cap);
  return generate_schedule("adaptive-v", options);
}

Simulation price(const Schedule& schedule, const GeneratorOptions& options) {
  return simulate(schedule, unit_costs(schedule, options.times, options.comm, options.keep_after_i),
                  {.keep_after_i = options.keep_after_i});
}

// Nothing where the cap is refused.
std::optional<Simulation> proved_and_priced(const GeneratorOptions& options, double cap) {
  std::optional<Schedule> schedule;
  try {
    schedule = under_cap(options, cap);
  } catch (const UserError&) {
    return std::nullopt;
  }
  const Validation validation = validate(*schedule);
  EXPECT_TRUE(validation.valid()) << validation.problems[0].line();
  return price(*schedule, options);
}

std::string refusal(const GeneratorOptions& options) {
  try {
    generate_schedule("adaptive-v", options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

int least_cap(int devices) { return 2 * ((devices + 4) / 3); }

TEST(AdaptiveV, BubbleFollowsTheFormulaForEveryCap) {
  for (int p = 1; p <= 13; ++p)
    for (int cap = least_cap(p); cap <= 2 * p; ++cap) {
      const auto result = proved_and_priced(sized(p, 2 * p), cap);
      ASSERT_TRUE(result) << "p " << p << " cap " << cap;
      const int bubble = cap == 2 * p ? 0 : cap == 2 * p - 1 ? 3 : 6 * p - 1 - 3 * cap;
      EXPECT_EQ(result->bubble, bubble) << "p " << p << " cap " << cap;
      EXPECT_EQ(result->max_peak, cap) << "p " << p;
    }
}

TEST(AdaptiveV, KeepsTheCapAndNeverLosesByALargerOne) {
  struct Case {
    OpTimes times;
    double comm;
    double keep_after_i;
  };
  const std::vector<Case> cases = {{{1, 1, 1}, 0, 1},   {{3, 4, 2}, 0.3, 1},
                                   {{1, 1, 1}, 0, 0.5}, {{2, 1, 3}, 0, 0},
                                   {{1, 1, 0}, 0, 1},   {{0.1, 0.2, 0.3}, 1.7, 0.3}};
  for (const Case& c : cases)
    for (int p = 1; p <= 4; ++p)
      for (int m = 1; m <= 3 * p; m += p > 2 ? 2 : 1) {
        GeneratorOptions options = sized(p, m);
        options.times = c.times;
        options.comm = c.comm;
        options.keep_after_i = c.keep_after_i;
        double span = 0;
        for (double cap = 1; cap <= 2 * p + 1; cap += 0.5) {
          const auto result = proved_and_priced(options, cap);
          const std::string where =
              fmt::format("p {} m {} cap {} keep {} F {}", p, m, cap, c.keep_after_i, c.times.f);
          if (!result) {
            EXPECT_EQ(span, 0) << where << " refused after a smaller cap was not";
            EXPECT_LT(cap, std::min(2 * m, least_cap(p))) << where;
            continue;
          }
          EXPECT_LE(result->max_peak, cap + 1e-9) << where;
          if (span > 0) {
            EXPECT_LE(result->span, span * (1 + 1e-9)) << where;
          }
          span = result->span;
        }
        EXPECT_GT(span, 0) << "p " << p << " m " << m;
      }
}

TEST(AdaptiveV, CapsBetweenWholeNumbersAndAboveAllMemoryAreRoundedDown) {
  const GeneratorOptions options = sized(4, 8);
  EXPECT_EQ(under_cap(options, 6.9), under_cap(options, 6));
  EXPECT_EQ(under_cap(options, 1e9), under_cap(options, 8));
}

TEST(AdaptiveV, RefusalsNameTheLegalRange) {
  GeneratorOptions options = sized(8, 24);
  EXPECT_NE(refusal(options).find("from 8 to 16"), std::string::npos) << refusal(options);
  for (const double cap : {-1.0, 0.0, 7.9}) {
    options.memory_cap = cap;
    EXPECT_NE(refusal(options).find("from 8 to 16"), std::string::npos) << refusal(options);
  }
  options.microbatches = 3;  // six activations hold all of them
  options.memory_cap = 5;
  EXPECT_NE(refusal(options).find("from 6 to 16"), std::string::npos) << refusal(options);
}

TEST(AdaptiveV, OneCapForAllIsTheSameAsTheSameCapForEach) {
  const GeneratorOptions options = sized(4, 8);
  EXPECT_EQ(under_cap(options, std::vector<double>(4, 5.0)), under_cap(options, 5));
}

// Device 0 alone is short of memory, as where it also holds the embedding and the head.
TEST(AdaptiveV, MoreMemoryOnTheOtherDevicesHelps) {
  const GeneratorOptions options = sized(8, 24);
  std::vector<double> caps(8, 16.0);
  caps[0] = 12;
  const Simulation result = price(under_cap(options, caps), options);
  EXPECT_LE(result.devices[0].peak_activations, 12);
  EXPECT_EQ(price(under_cap(options, 12), options).bubble, 11);
  EXPECT_EQ(result.bubble, 4);
}

TEST(AdaptiveV, ARefusedListNamesTheLeastThatFits) {
  GeneratorOptions options = sized(4, 8);
  options.memory_cap = std::vector<double>{8, 8, 1, 8};
  EXPECT_NE(refusal(options).find("; 8,8,3,8 stage-activations would do"), std::string::npos)
      << refusal(options);
  options.memory_cap = std::vector<double>{8, 8, 3, 8};
  EXPECT_EQ(refusal(options), "");
  options.memory_cap = std::vector<double>{8, 8, 2.9, 8};
  EXPECT_NE(refusal(options), "");
}

TEST(AdaptiveV, FreeingAtInputGradientNeverHurtsAndLowersTheLeastCap) {
  GeneratorOptions strict = sized(8, 16);
  GeneratorOptions freeing = strict;
  freeing.keep_after_i = 0;
  EXPECT_FALSE(proved_and_priced(strict, 6));
  EXPECT_TRUE(proved_and_priced(freeing, 6));
  for (int cap = 8; cap <= 16; ++cap)
    EXPECT_LE(proved_and_priced(freeing, cap)->span, proved_and_priced(strict, cap)->span) << cap;
  EXPECT_LT(proved_and_priced(freeing, 8)->span, proved_and_priced(strict, 8)->span);
}

TEST(AdaptiveV, SearchesWithTheRealTimes) {
  const GeneratorOptions unit = sized(8, 24);
  GeneratorOptions real = unit;
  real.times = {3, 4, 2};
  real.comm = 0.5;
  for (int cap = 8; cap <= 16; ++cap)
    EXPECT_LT(price(under_cap(real, cap), real).span, price(under_cap(unit, cap), real).span)
        << cap;
}

TEST(AdaptiveV, OneSlowStageIsSearchedAsSuch) {
  GeneratorOptions options = sized(4, 12);
  options.stage_times.assign(8, {1, 1, 1});
  options.stage_times[5] = {3, 3, 3};
  const Schedule aware = under_cap(options, 6);
  const Schedule unaware = under_cap(sized(4, 12), 6);
  const auto span = [&](const Schedule& schedule) {
    std::vector<OpCosts> table;
    for (const OpTimes& t : options.stage_times)
      table.push_back({.f = t.f, .i = t.i, .w = t.w, .b = t.i + t.w});
    return simulate(schedule, Costs(8, 1, table)).span;
  };
  EXPECT_TRUE(validate(aware).valid());
  EXPECT_LT(span(aware), span(unaware));
}

TEST(AdaptiveVOrder, BlocksRepeatIntoCompleteOrdersOfTheirPeak) {
  for (int p = 1; p <= 6; ++p) {
    vee::Player player(p, 2 * p, vee::Units({1}, 2 * p),
                       {std::vector<double>(static_cast<std::size_t>(6 * p), 1.0), 0});
    std::vector<int> slots;
    const auto blocks = vee::make_blocks(p, 1);
    EXPECT_FALSE(blocks.empty());
    for (const vee::Block& block : blocks) {
      const vee::Order order = vee::repeat(block, 0, 2 * p);
      for (int d = 0; d < p; ++d)
        for (const vee::Letter letter : vee::kLetters)
          EXPECT_EQ(std::ranges::count(order.row(d), letter), 2 * p);
      EXPECT_TRUE(player.squeeze(order, slots));
      if (const double peak = vee::peak_of(block, 0, 1); peak <= 2 * p) {
        EXPECT_EQ(std::ranges::max(vee::peaks_of(order, vee::Units({1}, 2 * p), 1)), peak);
      }
    }
  }
}

TEST(AdaptiveVPlayer, RefusesAnOrderThatBlocks) {
  vee::Order order(1, 1);
  order.letters = {vee::F1, vee::F0, vee::I1, vee::I0, vee::W1, vee::W0};
  vee::Player player(1, 1, vee::Units({1}, 1), {std::vector<double>(6, 1.0), 0});
  std::vector<int> slots;
  EXPECT_FALSE(player.squeeze(order, slots));
}

TEST(AdaptiveVPlayer, WaitsForRoomWhereItIsStrict) {
  vee::Order order(1, 2);
  order.letters = {vee::F0, vee::F1, vee::F0, vee::F1, vee::I1, vee::I0,
                   vee::W1, vee::W0, vee::I1, vee::I0, vee::W1, vee::W0};
  vee::Player player(1, 2, vee::Units({1}, 2), {std::vector<double>(6, 1.0), 0});
  vee::Played played{vee::Order(1, 2), 0};
  const std::vector<double> room_for_one(1, 2.0);
  ASSERT_TRUE(player.play(
      order, {.limits = room_for_one, .strict = true, .patience = 1, .give_up = 100}, played));
  EXPECT_EQ(vee::peaks_of(played.order, vee::Units({1}, 2), 1), room_for_one);
  const std::vector<double> too_little(1, 1.0);
  EXPECT_FALSE(player.play(
      order, {.limits = too_little, .strict = true, .patience = 1, .give_up = 100}, played));
}

TEST(AdaptiveVPlayer, FillsAGapOnlyWhereTheStashHasRoom) {
  // Device 0 waits from 1 to 3 for device 1 to turn microbatch 0 around: time for its second F.
  vee::Order order(2, 2);
  order.letters = {vee::F0, vee::F1, vee::F0, vee::F1, vee::I1, vee::W1, vee::I0, vee::W0,
                   vee::I1, vee::W1, vee::I0, vee::W0, vee::F0, vee::F1, vee::F0, vee::F1,
                   vee::I1, vee::W1, vee::I0, vee::W0, vee::I1, vee::W1, vee::I0, vee::W0};
  vee::Player player(2, 2, vee::Units({1}, 2), {std::vector<double>(12, 1.0), 0});
  vee::Played played{vee::Order(2, 2), 0};
  const std::vector<double> ample(2, 4.0), scarce(2, 1.0);
  ASSERT_TRUE(player.play(order, {.limits = ample, .patience = 1, .give_up = 100}, played));
  EXPECT_EQ(played.order.row(0)[1], vee::F0);
  const double span = played.span;
  ASSERT_TRUE(player.play(order, {.limits = scarce, .patience = 1, .give_up = 100}, played));
  EXPECT_EQ(played.order.row(0)[1], vee::F1) << "no room for a second forward";
  EXPECT_FALSE(player.play(order, {.limits = ample, .patience = 1, .give_up = span - 1}, played));
}

}  // namespace
}  // namespace sluice
