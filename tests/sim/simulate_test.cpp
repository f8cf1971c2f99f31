// The simulator against hand-computed cases.
#include "sluice/sim/simulate.h"

#include <gtest/gtest.h>

#include <numeric>

#include "sluice/base/error.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/transforms/split_backward.h"
#include "sluice/schedule/validate.h"

namespace sluice {
namespace {

Schedule valid_schedule(const std::string& text) {
  Schedule schedule = read_schedule(text);
  const Validation validation = validate(schedule);
  EXPECT_TRUE(validation.valid()) << validation.problems.front().line();
  return schedule;
}

std::vector<double> peaks(const Simulation& simulation) {
  std::vector<double> out;
  for (const DeviceResult& device : simulation.devices)
    out.push_back(device.peak_activations);
  return out;
}

const char* kTwoDevices =
    "0F0,0F1,0B0,0B1\n"
    "1F0,1B0,1F1,1B1\n";

// device 0  F0 F1 .  B0B0 .  .  B1B1      F at 0,1; B0 at 4; B1 at 7
// device 1  .  F0 B0B0 F1 B1B1            F0 at 1, B0 2..4, F1 at 4, B1 5..7
TEST(Simulate, OneFOneBByHand) {
  const Schedule schedule = valid_schedule(kTwoDevices);
  const Simulation sim = simulate(schedule, unit_costs(schedule, {1, 1, 1}, 0, 1));
  EXPECT_EQ(sim.makespan, 9);
  EXPECT_EQ(sim.span, 9);
  EXPECT_EQ(sim.ideal, 6);
  EXPECT_EQ(sim.bubble, 3);
  EXPECT_DOUBLE_EQ(sim.bubble_rate, 3.0 / 9);
  EXPECT_DOUBLE_EQ(sim.bubble_fraction, 3.0 / 6);
  EXPECT_EQ(sim.devices[1].first_start, 1);
  EXPECT_EQ(sim.devices[1].last_end, 7);
  EXPECT_EQ(peaks(sim), (std::vector<double>{2, 1}));
}

TEST(Simulate, LatencyDelaysTheConsumerAndOccupiesNothing) {
  const Schedule schedule = valid_schedule(kTwoDevices);
  // F0 0..1, arrives 1.5; F0 1.5..2.5; B0 2.5..4.5, back at 5; B0 5..7; F1 4.5..5.5, B1 5.5..7.5,
  // back at 8; B1 8..10.
  const Simulation sim = simulate(schedule, unit_costs(schedule, {1, 1, 1}, 0.5, 1));
  EXPECT_EQ(sim.makespan, 10);
  // Many messages at once are all in flight together: latency is no occupancy.
  const Schedule gpipe = valid_schedule("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
  const Simulation far = simulate(gpipe, unit_costs(gpipe, {1, 1, 1}, 10, 1));
  EXPECT_EQ(far.devices[1].first_start, 11);
  EXPECT_EQ(far.devices[1].last_end, 11 + 9);
}

TEST(Simulate, StagesAndOpsMayTakeUnequalTimes) {
  const Schedule schedule = valid_schedule("0F0,0I0,0W0\n1F0,1I0,1W0\n");
  const Costs costs = costs_from_json(
      R"({"schema":1,"stages":[{"F":[1],"I":[2],"W":[4]},{"F":[8],"I":[16],"W":[32]}]})", schedule);
  // F0 0..1, F1 1..9, I1 9..25, W1 25..57, I0 25..27, W0 27..31.
  const Simulation sim = simulate(schedule, costs);
  EXPECT_EQ(sim.makespan, 57);
  EXPECT_EQ(sim.devices[0].last_end, 31);
  EXPECT_EQ(sim.ideal, 56);
  EXPECT_EQ(sim.span, 56);  // device 1 works from 1 to 57 without a gap
  EXPECT_EQ(sim.bubble, 0);
}

// Device 0 runs F0 until 1 and F1 until 4; device 1 F0 until 2, its B until 4, F1 until 7, its B
// until 13. Device 0 ends with B1, from 13 to 19, and holds both stashes from 1 to 6.
TEST(Simulate, MicrobatchesMayTakeUnequalTimesAndBytes) {
  const Schedule schedule = read_schedule("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  Costs costs(2, 1);
  costs.measured = true;
  std::vector<OpCosts> table;
  for (const double size : {1., 3.})
    table.insert(table.end(), 2, OpCosts{.f = size, .b = 2 * size, .after_f = 10 * size});
  costs.set_microbatches(table);
  const Simulation result = simulate(schedule, costs);
  EXPECT_EQ(result.makespan, 19);
  EXPECT_EQ(result.ideal, 12);
  EXPECT_EQ(result.devices[0].peak_bytes, 40);
  EXPECT_EQ(result.devices[1].peak_bytes, 30);
}

TEST(Simulate, MicrobatchesThatAreAlikeAreTheStages) {
  for (const char* name : {"1f1b", "zb-v", "v-half", "interleaved-1f1b"}) {
    GeneratorOptions options;
    options.devices = 4;
    options.microbatches = 8;
    const Schedule schedule = generate_schedule(name, options);
    Costs costs(schedule.num_stages(), 1);
    costs.measured = true;
    costs.default_link = {0.1, 100};
    for (int stage = 0; stage < schedule.num_stages(); ++stage)
      costs.at(stage, 0) = {1. + stage, 2, 1.5, 3, 7. + stage, 5, 0, 0, 20, 10};
    const Simulation before = simulate(schedule, costs);
    std::vector<OpCosts> table;
    for (int m = 0; m < 8; ++m)
      for (int stage = 0; stage < schedule.num_stages(); ++stage)
        table.push_back(costs.at(stage, 0));
    costs.set_microbatches(table);
    // Only what is said of microbatches counts.
    for (int stage = 0; stage < schedule.num_stages(); ++stage)
      costs.at(stage, 0) = {};
    const Simulation after = simulate(schedule, costs);
    EXPECT_EQ(after.makespan, before.makespan) << name;
    for (std::size_t d = 0; d < 4; ++d)
      EXPECT_EQ(after.devices[d].peak_bytes, before.devices[d].peak_bytes) << name;
  }
}

TEST(Simulate, AFullBackwardMayCostLessThanItsParts) {
  const Schedule schedule = valid_schedule("0F0,0B0\n");
  const Costs costs =
      costs_from_json(R"({"schema":1,"stages":[{"F":[1],"I":[2],"W":[4],"B":[5]}]})", schedule);
  EXPECT_EQ(simulate(schedule, costs).makespan, 6);
  const Schedule split = split_backward(schedule);
  EXPECT_EQ(simulate(split, costs).makespan, 7);
}

TEST(Simulate, ALinkCarriesOneMessageAtATime) {
  const Schedule gpipe = valid_schedule("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
  // Three outputs at 1, 2, 3 of 30 bytes over 10 bytes/s and 0.5 s: the link is busy 1..4, 4..7,
  // 7..10; they arrive at 4.5, 7.5, 10.5. Gradients (no bytes) take the latency alone.
  const Costs costs = costs_from_json(
      R"({"schema":1,"stages":[{"F":[1],"I":[1],"W":[0],"sent_forward":[30]},{"F":[1],"I":[1],"W":[0]}],
          "default_link":{"latency_s":0.5,"bytes_per_s":10}})",
      gpipe);
  const Simulation sim = simulate(gpipe, costs, {.timeline = true});
  ASSERT_EQ(sim.timeline.messages.size(), 6u);
  EXPECT_EQ(sim.timeline.messages[0].start, 1);
  EXPECT_EQ(sim.timeline.messages[0].end, 4.5);
  EXPECT_EQ(sim.timeline.messages[1].end, 7.5);
  EXPECT_EQ(sim.timeline.messages[2].end, 10.5);
  EXPECT_EQ(sim.devices[1].last_end, 14.5);
  EXPECT_EQ(sim.makespan, 16);  // last gradient leaves at 14.5, arrives at 15, B 15..16
}

TEST(Simulate, LinksDifferByDirectionAndPair) {
  const Schedule schedule = valid_schedule("0F0,0B0\n1F0,1B0\n");
  const Costs costs = costs_from_json(
      R"({"schema":1,"stages":[{"F":[1],"I":[1],"W":[1]},{"F":[1],"I":[1],"W":[1]}],
          "links":[{"from":0,"to":1,"latency_s":5}],"default_link":{"latency_s":1}})",
      schedule);
  EXPECT_EQ(simulate(schedule, costs).makespan, 1 + 5 + 3 + 1 + 2);
}

TEST(Simulate, AnExplicitSendLeavesWhereItStands) {
  // The send waits behind a second forward: the consumer starts at 2, not at 1.
  const Schedule late = valid_schedule(
      "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
  EXPECT_EQ(simulate(late, unit_costs(late, {1, 1, 1}, 0, 1)).devices[1].first_start, 2);
}

TEST(Simulate, TheStashMayGrowAtI) {
  const Schedule schedule = valid_schedule("0F0,0F1,0I0,0I1,0W0,0W1\n");
  const Costs costs = costs_from_json(
      R"({"schema":1,"stages":[{"F":[1],"I":[1],"W":[1],"after_F":[10],"after_I":[25]}]})",
      schedule);
  const Simulation sim = simulate(schedule, costs, {.timeline = true});
  EXPECT_EQ(sim.max_peak_bytes, 50);  // both after I
  EXPECT_EQ(sim.max_peak, 2);         // activations count 1 from F to W regardless
  const auto& memory = sim.timeline.devices[0].memory;
  ASSERT_EQ(memory.size(), 6u);
  const double expected[][2] = {{0, 10}, {1, 20}, {3, 35}, {4, 50}, {5, 25}, {6, 0}};
  for (std::size_t n = 0; n < 6; ++n) {
    EXPECT_EQ(memory[n].time, expected[n][0]);
    EXPECT_EQ(memory[n].value, expected[n][1]);
  }
}

TEST(Simulate, KeepAfterIChangesTheSharePeaksCount) {
  const Schedule schedule = valid_schedule("0F0,0I0,0F1,0I1,0F2,0I2,0W0,0W1,0W2\n");
  for (const auto& [keep, peak] : {std::pair{1.0, 3.0}, std::pair{0.5, 2.0}, std::pair{0.0, 1.0}})
    EXPECT_EQ(simulate(schedule, unit_costs(schedule, {1, 1, 1}, 0, keep), {.keep_after_i = keep})
                  .max_peak,
              peak)
        << keep;
}

TEST(Simulate, KeysAndValuesOfEarlierSlicesStayUntilTheLastI) {
  const Schedule schedule = valid_schedule("0F0.0,0F0.1,0B0.1,0B0.0\n");
  const Costs costs = costs_from_json(
      R"({"schema":1,"stages":[{"F":[1,1],"I":[1,1],"W":[1,1],"after_F":[10,10],"kv_bytes":[3,4]}]})",
      schedule);
  const Simulation sim = simulate(schedule, costs, {.timeline = true});
  std::vector<double> values;
  for (const MemoryPoint& point : sim.timeline.devices[0].memory)
    values.push_back(point.value);
  EXPECT_EQ(values, (std::vector<double>{13, 27, 17, 0}));
  EXPECT_EQ(sim.max_peak_bytes, 27);
}

TEST(Simulate, GradientsOfKeysAndValuesAreHeldBetweenTheFirstIAndTheLast) {
  const Schedule schedule = valid_schedule("0F0.0,0F0.1,0F0.2,0B0.2,0B0.1,0B0.0\n");
  std::vector<OpCosts> table(3);
  for (std::size_t c = 0; c < 3; ++c) {
    table[c].f = table[c].b = 1;
    table[c].kv_gradient = std::vector<double>{5, 7, 100}[c];
  }
  Costs costs(1, 3, table);
  costs.measured = true;
  const Simulation sim = simulate(schedule, costs, {.timeline = true});
  std::vector<double> values;
  for (const MemoryPoint& point : sim.timeline.devices[0].memory)
    values.push_back(point.value);
  EXPECT_EQ(values, (std::vector<double>{12, 5, 0}));
}

TEST(Simulate, SlicesTakeTheirShareOfTimeAndMemory) {
  Schedule schedule = valid_schedule("0F0.0,0F0.1,0B0.1,0B0.0\n");
  schedule.slice_sizes = {3, 1};
  const Simulation sim =
      simulate(schedule, unit_costs(schedule, {4, 4, 4}, 0, 1), {.timeline = true});
  EXPECT_EQ(sim.makespan, 12);
  EXPECT_EQ(sim.timeline.devices[0].spans[0].end, 3);
  EXPECT_EQ(sim.timeline.devices[0].memory[0].value, 0.75);
  EXPECT_EQ(sim.max_peak, 1);
}

// Seq1F1B's slices of equal tokens against slices of equal compute. The forward cost of n tokens
// that end at position x is c n + a (n x - n^2 / 2); the backward takes twice that. Published
// ratios of makespan to ideal time.
TEST(Simulate, SlicesOfEqualComputeBeatSlicesOfEqualTokens) {
  struct Case {
    double layers, hidden, heads, vocabulary;
    int devices, microbatches;
    std::vector<std::int64_t> balanced;
    double even_ratio, balanced_ratio;
  };
  const std::vector<Case> cases = {
      {32, 4096, 32, 32768, 4, 16, {25112, 16248, 13008, 11168}, 1.462, 1.047},
      {32, 4096, 32, 32768, 4, 16, {55880, 30816, 24008, 20368}, 1.579, 1.047},
      {32, 2560, 32, 32000, 8, 32, {12019, 8252, 6703, 5794}, 1.441, 1.055},
      {32, 2560, 32, 32000, 8, 16, {5301, 4230, 3627, 3226}, 1.373, 1.110}};
  for (const Case& model : cases) {
    const double h = model.hidden;
    const double c = 4 * h * model.vocabulary + model.layers * (8 * h * h + 16 * h * h);
    const double a = model.layers * model.heads * (4 * h / model.heads + 3);
    GeneratorOptions options;
    options.devices = model.devices;
    options.microbatches = model.microbatches;
    options.slices = 4;
    const Schedule schedule = generate_schedule("seq1f1b", options);
    const auto ratio = [&](const std::vector<std::int64_t>& sizes) {
      std::vector<OpCosts> one_stage;
      double end = 0;
      for (const std::int64_t size : sizes) {
        const auto n = static_cast<double>(size);
        end += n;
        OpCosts costs;
        costs.f = c * n + a * (n * end - n * n / 2);
        costs.i = costs.w = costs.f;
        costs.b = costs.i + costs.w;
        one_stage.push_back(costs);
      }
      std::vector<OpCosts> table;
      for (int stage = 0; stage < model.devices; ++stage)
        table.insert(table.end(), one_stage.begin(), one_stage.end());
      const Simulation sim = simulate(schedule, Costs(model.devices, 4, table));
      return sim.makespan / sim.ideal;
    };
    const std::int64_t tokens = std::accumulate(model.balanced.begin(), model.balanced.end(), 0L);
    EXPECT_NEAR(ratio({tokens / 4, tokens / 4, tokens / 4, tokens / 4}), model.even_ratio, 5.1e-4);
    EXPECT_NEAR(ratio(model.balanced), model.balanced_ratio, 5.1e-4);
  }
}

TEST(Simulate, AGroupRunsSeriallyUnlessTheCostsSayOtherwise) {
  const Schedule schedule = valid_schedule("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
  EXPECT_EQ(simulate(schedule, unit_costs(schedule, {2, 1, 2}, 0, 1)).makespan, 10);
  Costs half = unit_costs(schedule, {2, 1, 2}, 0, 1);
  half.overlap = 0.5;  // the group takes 3 + 0.5 * 2
  const Simulation sim = simulate(schedule, half);
  EXPECT_EQ(sim.makespan, 9);
  EXPECT_EQ(sim.ideal, 9);
  Costs full = unit_costs(schedule, {2, 1, 2}, 0, 1);
  full.overlap = 1;
  EXPECT_EQ(simulate(schedule, full).makespan, 8);
}

TEST(Simulate, AGroupSendsWhenTheWholeOfItIsDone) {
  const Schedule schedule = valid_schedule(
      "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"
      "1F0,1B0,1F1,1B1\n");
  const Costs costs = unit_costs(schedule, {1, 1, 1}, 0, 1);
  EXPECT_EQ(simulate(schedule, costs).makespan, 12);
  EXPECT_EQ(simulate(validate(schedule).lowered, costs).makespan, 12);
}

TEST(Simulate, AGroupWaitsForAllItsInputs) {
  const Schedule schedule = valid_schedule(
      "0F0,0F1,0B0,0B1\n"
      "1F0,(1F1;1B0)OVERLAP_F_B,1B1\n");
  const Simulation sim =
      simulate(schedule, unit_costs(schedule, {1, 1, 1}, 0, 1), {.timeline = true});
  EXPECT_EQ(sim.timeline.devices[1].spans[1].start, 2);
}

TEST(Simulate, TheCriticalPathIsAChainWithoutGaps) {
  const Schedule schedule = valid_schedule(kTwoDevices);
  const Simulation sim =
      simulate(schedule, unit_costs(schedule, {1, 1, 1}, 0.25, 1), {.timeline = true});
  const auto path = critical_path(sim.timeline);
  std::vector<std::string> ops;
  for (const CriticalStep& step : path)
    ops.push_back(sim.timeline.text(sim.timeline.devices[static_cast<std::size_t>(step.device)]
                                        .spans[static_cast<std::size_t>(step.span)]
                                        .op));
  EXPECT_EQ(ops, (std::vector<std::string>{"0F0", "1F0", "1B0", "1F1", "1B1", "0B1"}));
}

// Two stages on one device:
//   compute  F0 F1 B1B1 B0B0          B1 ends at 4, B0 at 6
//   reduce               R1-----------R0-----    R1 4..9 (5 bytes at 1 per time), R0 9..11
TEST(Simulate, ReductionsFollowEachOtherBesideTheCompute) {
  const Schedule schedule = valid_schedule("0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD\n");
  Costs costs = unit_costs(schedule, {1, 1, 1}, 0, 1);
  EXPECT_EQ(simulate(schedule, costs).makespan, 6);
  costs.reduce = {2, 5};
  costs.data_link = {0, 1};
  const Simulation sim = simulate(schedule, costs, {.timeline = true});
  EXPECT_EQ(sim.makespan, 11);
  EXPECT_EQ(sim.exposed_reduction, 5);
  EXPECT_EQ(sim.span, 6);  // of the compute
  EXPECT_EQ(sim.bubble, 0);
  const std::vector<Reduction>& reductions = sim.timeline.devices[0].reductions;
  ASSERT_EQ(reductions.size(), 2u);
  EXPECT_EQ(std::tie(reductions[0].start, reductions[0].end), std::make_tuple(4.0, 9.0));
  EXPECT_EQ(std::tie(reductions[1].start, reductions[1].end), std::make_tuple(9.0, 11.0));
  // R0 waits for R1, and that for 1B0: the end of the chain.
  EXPECT_EQ(critical_path(sim.timeline).back().span, 2);
  // Latency delays each and occupies nothing: R1 4..9 arrives at 19, R0 9..11 at 21.
  costs.data_link.latency = 10;
  EXPECT_EQ(simulate(schedule, costs).makespan, 21);
  // Short ones hide: R1 4..4.5; R0 6..6.25 ends the step.
  costs.reduce = {0.25, 0.5};
  costs.data_link.latency = 0;
  EXPECT_EQ(simulate(schedule, costs).exposed_reduction, 0.25);
}

// Device 1 is done at 7 and reduces until 8.5, before device 0 ends at 9.
TEST(Simulate, OnlyWhatOutlastsTheComputeOfAllDevicesIsExposed) {
  const Schedule schedule = valid_schedule("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1,1REDUCE_GRAD\n");
  Costs costs = unit_costs(schedule, {1, 1, 1}, 0, 1);
  costs.reduce = {100, 3};
  costs.data_link = {0, 2};
  EXPECT_EQ(simulate(schedule, costs).exposed_reduction, 0);
  EXPECT_EQ(simulate(schedule, costs).makespan, 9);
  costs.data_link.bytes_per_time = 1;
  EXPECT_EQ(simulate(schedule, costs).exposed_reduction, 1);
  EXPECT_EQ(simulate(validate(schedule).lowered, costs).makespan, 10);
}

TEST(Simulate, RefusesWhatWasNotProved) {
  const Schedule stuck = read_schedule("0B0,0F0\n1F0,1B0\n");
  EXPECT_THROW(simulate(stuck, unit_costs(stuck, {1, 1, 1}, 0, 1)), InternalError);
}

}  // namespace
}  // namespace sluice
