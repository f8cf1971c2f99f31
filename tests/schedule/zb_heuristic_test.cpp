// What the golden values of tests/data/golden/zb.txt cannot say: promises over many caps and times.
#include "sluice/schedule/generators/zb_heuristic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/schedule/generators/generator.h"

namespace sluice {
namespace {

struct Outcome {
  double span = 0;
  double peak = 0;
  std::vector<double> peaks;  // by device
};

// Plays the programs; fails the test if they cannot run or leave something out.
Outcome play(const Schedule& schedule, const GeneratorOptions& options) {
  constexpr double kNotYet = -1;
  const auto p = static_cast<std::size_t>(schedule.num_devices());
  std::vector<double> f_end(schedule.num_cells(), kNotYet);
  std::vector<double> i_end(schedule.num_cells(), kNotYet);
  std::vector<std::size_t> position(p, 0);
  std::vector<double> first(p, 0);
  std::vector<double> clock(p, 0);
  std::vector<double> held(p, 0);
  Outcome outcome;
  outcome.peaks.resize(p);
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t d = 0; d < p; ++d) {
      const Program& program = schedule.programs[d];
      for (; position[d] < program.size(); ++position[d]) {
        const Op& op = program[position[d]];
        double start = clock[d];
        bool ready = true;
        for (const Op& input : inputs_of(op, schedule)) {
          const double end = (input.kind == OpKind::F ? f_end : i_end)[schedule.cell(input)];
          ready = ready && end != kNotYet;
          start = std::max(start, end + (input.stage == op.stage ? 0 : options.comm));
        }
        if (!ready) break;
        progress = true;
        const OpTimes& times = options.times_of(op.stage);
        const bool forward = op.kind == OpKind::F;
        const bool input_gradient = op.kind == OpKind::I;
        clock[d] = start + (forward ? times.f : input_gradient ? times.i : times.w);
        if (position[d] == 0) first[d] = start;
        if (forward) f_end[schedule.cell(op)] = clock[d];
        if (input_gradient) i_end[schedule.cell(op)] = clock[d];
        held[d] += forward ? 1 : input_gradient ? options.keep_after_i - 1 : -options.keep_after_i;
        outcome.peak = std::max(outcome.peak, held[d]);
        outcome.peaks[d] = std::max(outcome.peaks[d], held[d]);
      }
    }
  }
  for (std::size_t d = 0; d < p; ++d) {
    EXPECT_EQ(position[d], 3 * static_cast<std::size_t>(schedule.num_microbatches))
        << "device " << d;
    EXPECT_EQ(position[d], schedule.programs[d].size()) << "device " << d << " is stuck";
    EXPECT_NEAR(held[d], 0, 1e-9) << "device " << d << " keeps something";
    outcome.span = std::max(outcome.span, clock[d] - first[d]);
  }
  return outcome;
}

Outcome play(std::string_view name, const GeneratorOptions& options) {
  return play(generate_schedule(name, options), options);
}

Outcome play_under(MemoryCap cap, GeneratorOptions options) {
  options.memory_cap = std::move(cap);
  return play("zb", options);
}

GeneratorOptions line(int devices, int microbatches, const OpTimes& times = {}) {
  GeneratorOptions options;
  options.devices = devices;
  options.microbatches = microbatches;
  options.times = times;
  return options;
}

// Stage times that differ by up to a factor of two, in no particular order.
GeneratorOptions uneven_line(int devices, int microbatches) {
  GeneratorOptions options = line(devices, microbatches);
  for (int j = 0; j < devices; ++j)
    options.stage_times.push_back({1 + 0.1 * (7 * j % 10), 1 + 0.1 * (3 * j % 10), 0.9});
  options.comm = 0.3;
  return options;
}

TEST(ZbHeuristicTest, CapIsNeverExceeded) {
  for (const int p : {1, 2, 3, 5, 8}) {
    for (const int m : {1, 2, p, 2 * p + 1, 4 * p}) {
      for (GeneratorOptions options : {line(p, m), line(p, m, {3, 4, 2}), line(p, m, {2, 1, 3}),
                                       line(p, m, {1, 1, 0}), uneven_line(p, m)}) {
        for (const double keep : {1.0, 0.7, 0.1, 0.0}) {
          options.keep_after_i = keep;
          for (double cap = 1; cap <= 2 * p + 1; cap += 0.7)
            EXPECT_LE(play_under(cap, options).peak, cap + 1e-9)
                << "p " << p << " m " << m << " keep " << keep << " cap " << cap;
        }
      }
    }
  }
}

TEST(ZbHeuristicTest, NoDeviceExceedsItsOwnCapAndNoListIsSlowerThanItsLeast) {
  std::mt19937 random(5);
  for (const int p : {2, 3, 5, 8})
    for (const int m : {1, p, 2 * p + 1})
      for (GeneratorOptions options :
           {line(p, m), line(p, m, {3, 4, 2}), line(p, m, {2, 1, 3}), uneven_line(p, m)})
        for (const double keep : {1.0, 0.4}) {
          options.keep_after_i = keep;
          std::vector<double> caps;
          for (int d = 0; d < p; ++d)
            caps.push_back(1 + 0.25 * static_cast<double>(random() % static_cast<unsigned>(8 * p)));
          const Outcome outcome = play_under(caps, options);
          for (int d = 0; d < p; ++d)
            EXPECT_LE(outcome.peaks[static_cast<std::size_t>(d)],
                      caps[static_cast<std::size_t>(d)] + 1e-9)
                << "p " << p << " m " << m << " keep " << keep << " device " << d;
          EXPECT_LE(outcome.span, play_under(MemoryCap(caps).least(), options).span + 1e-9)
              << "p " << p << " m " << m << " keep " << keep;
        }
}

// 1F1B's own memory, device by device, and what its other devices would need for less bubble.
TEST(ZbHeuristicTest, EachDeviceUsesItsOwnCap) {
  const GeneratorOptions options = line(4, 8);
  EXPECT_EQ(play_under(std::vector<double>{4, 3, 2, 1}, options).span, 24 + 6);
  EXPECT_EQ(play_under(std::vector<double>{4, 4, 4, 4}, options).span, 24 + 3);
  EXPECT_EQ(play_under(1, options).span, 72);
}

TEST(ZbHeuristicTest, CapOfOneRunsOneMicrobatchAtATime) {
  const Outcome outcome = play_under(1, line(4, 6, {3, 4, 2}));
  EXPECT_DOUBLE_EQ(outcome.span, 6 * (4 * (3 + 4) + 2));
  EXPECT_DOUBLE_EQ(outcome.peak, 1);
}

TEST(ZbHeuristicTest, EachActivationBeyondPTakesOneForwardOutOfTheBubble) {
  for (const int p : {2, 3, 4, 7, 8, 16})
    for (int cap = p; cap < 2 * p; ++cap)
      EXPECT_DOUBLE_EQ(play_under(cap, line(p, 3 * p)).span, 9 * p + 2 * p - 1 - cap)
          << "p " << p << " cap " << cap;
}

TEST(ZbHeuristicTest, IsNeverLongerThanTheHandcraftedSchedulesInTheirMemory) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 3 * p; ++m) {
      for (const OpTimes& times : {OpTimes{1, 1, 1}, OpTimes{3, 4, 2}, OpTimes{10, 10, 7}}) {
        const GeneratorOptions options = line(p, m, times);
        EXPECT_LE(play_under(p, options).span, play("zb-h1", options).span) << p << " " << m;
        EXPECT_LE(play_under(2 * p - 1, options).span, play("zb-h2", options).span)
            << p << " " << m;
      }
    }
  }
}

TEST(ZbHeuristicTest, MoreMemoryIsNeverWorseAtEqualStages) {
  for (const OpTimes& times : {OpTimes{1, 1, 1}, OpTimes{3, 4, 2}, OpTimes{10, 10, 7}}) {
    const GeneratorOptions options = line(8, 24, times);
    double before = play_under(1, options).span;
    for (int cap = 2; cap <= 24; ++cap) {
      const double span = play_under(cap, options).span;
      EXPECT_LE(span, before) << "cap " << cap;
      before = span;
    }
  }
}

TEST(ZbHeuristicTest, GreedyPlayersHalveTheBubbleBelowP) {
  const GeneratorOptions options = line(8, 24);
  for (int cap = 3; cap < 8; ++cap) {
    const StashRule rule{.after_f = 1, .after_i = 1, .limit = static_cast<double>(cap)};
    const double published = play(zb_published("zb", options, rule), options).span - 72;
    EXPECT_LT(play_under(cap, options).span - 72, published / 2) << "cap " << cap;
  }
}

TEST(ZbHeuristicTest, UsesTheTimesOfEachStage) {
  GeneratorOptions options = uneven_line(6, 18);
  options.memory_cap = 7;
  GeneratorOptions blind = options;
  blind.stage_times.clear();
  blind.comm = 0;
  EXPECT_LT(play("zb", options).span, play(generate_schedule("zb", blind), options).span);
}

TEST(ZbHeuristicTest, KeepingLessAfterIHelpsUnderTheSameCap) {
  GeneratorOptions options = line(8, 24, {10, 10, 7});
  const double strict = play_under(16, options).span;
  options.keep_after_i = 0.5;
  EXPECT_LT(play_under(16, options).span, strict);
}

TEST(ZbHeuristicTest, PapersWeightsMayHoldMoreThanTheirLimitInStrictCounting) {
  const GeneratorOptions options = line(8, 32, {10, 10, 7});
  EXPECT_GT(play("zb-2p", options).peak, 16);
  GeneratorOptions halves = options;
  halves.keep_after_i = 0.5;
  EXPECT_LE(play("zb-2p", halves).peak, 16);
  EXPECT_LE(play("zb-1p", halves).peak, 8);
}

std::string refusal(const GeneratorOptions& options) {
  try {
    generate_schedule("zb", options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ZbHeuristicTest, NamesTheLegalCaps) {
  GeneratorOptions options = line(4, 12);
  EXPECT_EQ(refusal(options).find("`memory_cap` is missing: zb takes from 1"), 0U)
      << refusal(options);
  options.memory_cap = 0.5;
  EXPECT_EQ(refusal(options).find("`memory_cap` is 0.5: "), 0U) << refusal(options);
  options.memory_cap = 1;
  EXPECT_EQ(refusal(options), "no error");
}

}  // namespace
}  // namespace sluice
