// The asynchronous schedules: their orders letter for letter, their windows, and how old the
// weights are that they use.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/staleness.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/transforms/first_windows.h"
#include "sluice/schedule/validate.h"

namespace sluice {
namespace {

struct Wanted {
  AmdpOrder order = AmdpOrder::automatic;
  int devices = 4, microbatches = 8, windows = 1;
  bool fused = false;
  int border = 0, update_slot = 0;
};

GeneratorOptions options_of(const Wanted& wanted) {
  GeneratorOptions options;
  options.devices = wanted.devices;
  options.microbatches = wanted.microbatches;
  options.windows = wanted.windows;
  options.asynchronous.order = wanted.order;
  options.asynchronous.fused = wanted.fused;
  options.asynchronous.border = wanted.border;
  options.asynchronous.update_slot = wanted.update_slot;
  return options;
}

Schedule amdp(const Wanted& wanted) { return generate_schedule("amdp", options_of(wanted)); }

std::string refusal(const std::string& name, const GeneratorOptions& options) {
  try {
    generate_schedule(name, options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// "F0 F2 B1": kind and microbatch of the computing ops.
std::string order_of(const Schedule& schedule, int device) {
  std::vector<std::string> ops;
  for (const Op& op : schedule.programs[static_cast<std::size_t>(device)])
    if (is_compute(op.kind)) ops.push_back(fmt::format("{}{}", kind_name(op.kind), op.microbatch));
  return join(ops, " ");
}

// "04125637": the microbatches of one kind in one block of d of them.
std::string microbatches_of(const Schedule& schedule, int device, OpKind kind) {
  std::string out;
  for (const Op& op : schedule.programs[static_cast<std::size_t>(device)])
    if (op.kind == kind) out += std::to_string(op.microbatch);
  return out;
}

TEST(Amdp, OrderAIsThePublishedOne) {
  const auto blocks_of = [](int devices) {
    return amdp(
        {.order = AmdpOrder::a, .devices = devices, .microbatches = devices, .fused = true});
  };
  const std::vector<std::string> four_f = {"0213", "0123", "1032", "1302"},
                                 four_b = {"1302", "1032", "0123", "0213"},
                                 eight_f = {"04125637", "01452367", "10543276", "15034726",
                                            "26307415", "23670145", "32761054", "37216504"};
  const Schedule four = blocks_of(4), eight = blocks_of(8);
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(microbatches_of(four, r, OpKind::F), four_f[static_cast<std::size_t>(r)]);
    EXPECT_EQ(microbatches_of(four, r, OpKind::B), four_b[static_cast<std::size_t>(r)]);
  }
  for (int r = 0; r < 8; ++r) {
    EXPECT_EQ(microbatches_of(eight, r, OpKind::F), eight_f[static_cast<std::size_t>(r)]);
    EXPECT_EQ(microbatches_of(eight, r, OpKind::B), eight_f[static_cast<std::size_t>(7 - r)]);
  }
  EXPECT_EQ(microbatches_of(blocks_of(12), 0, OpKind::F), "06147103298511");
  EXPECT_EQ(order_of(amdp({.order = AmdpOrder::a, .fused = true, .border = 2}), 0),
            "F0 F2 F1 B1 F3 B3 B0 F4 F6 B2 F5 B5 F7 B7 B4 B6");
}

TEST(Amdp, OrderRTakesAnyNumberOfDevices) {
  const auto orders = [](int devices, int microbatches) {
    const Schedule schedule = amdp(
        {.order = AmdpOrder::r, .devices = devices, .microbatches = microbatches, .fused = true});
    std::vector<std::string> out;
    for (int r = 0; r < devices; ++r)
      out.push_back(order_of(schedule, r));
    return out;
  };
  EXPECT_EQ(orders(2, 3), (std::vector<std::string>{"F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"}));
  EXPECT_EQ(orders(3, 4),
            (std::vector<std::string>{"F0 F1 F2 B1 F3 B0 B3 B2", "F0 F1 B1 F2 B0 F3 B3 B2",
                                      "F1 F0 F3 B0 F2 B1 B2 B3"}));
  EXPECT_EQ(orders(6, 6),
            (std::vector<std::string>{
                "F0 F2 F1 F3 B1 F5 B2 F4 B0 B4 B5 B3", "F0 F2 F1 B1 F3 B2 F5 B0 F4 B4 B5 B3",
                "F1 F0 F2 F4 B2 F3 B0 F5 B1 B5 B3 B4", "F1 F0 F2 B2 F4 B0 F3 B1 F5 B5 B3 B4",
                "F2 F1 F0 F5 B0 F4 B1 F3 B2 B3 B4 B5", "F2 F1 F0 B0 F5 B1 F4 B2 F3 B3 B4 B5"}));
  // The ops of one period of ten slots, once the pipes are full.
  const Schedule ten =
      amdp({.order = AmdpOrder::r, .devices = 10, .microbatches = 20, .fused = true});
  std::string period;
  const Program& first = ten.programs[0];
  for (std::size_t i = 0, forwards_of_pipe_0 = 0; i < first.size(); ++i) {
    if (first[i].kind == OpKind::F && first[i].pipe == 0) ++forwards_of_pipe_0;
    if (forwards_of_pipe_0 == 3)
      period += fmt::format("{}{} ", kind_name(first[i].kind), static_cast<int>(first[i].pipe));
  }
  EXPECT_EQ(period, "F0 B1 F4 B2 F3 B3 F2 B4 F1 B0 ");
}

TEST(Amdp, ADeviceHoldsAStageOfEachPlacement) {
  const auto copies = [](AmdpOrder order, int devices) {
    const Schedule schedule =
        amdp({.order = order, .devices = devices, .microbatches = 24, .windows = 3});
    return staleness_of(schedule).weight_copies;
  };
  EXPECT_EQ(copies(AmdpOrder::a, 8), std::vector<int>(8, 4));
  EXPECT_EQ(copies(AmdpOrder::t, 8), std::vector<int>(8, 2));
  EXPECT_EQ(copies(AmdpOrder::r, 6), std::vector<int>(6, 3));
  EXPECT_EQ(copies(AmdpOrder::r, 5), std::vector<int>({3, 3, 3, 3, 3}));
}

TEST(Amdp, AnUpdateFollowsEveryGradientAndComesBeforeTheNewOnes) {
  const Schedule schedule =
      amdp({.order = AmdpOrder::r, .devices = 2, .microbatches = 2, .windows = 2});
  EXPECT_EQ(schedule.program_text(0),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0REDUCE_GRAD0,0UPDATE0,0F3,0I2,0W2,0I3,0W3,0REDUCE_GRAD1,"
            "0UPDATE1");
  EXPECT_EQ(schedule.program_text(1),
            "1F0,1I0,1W0,1F1,1I1,1W1,1REDUCE_GRAD0,1F2,1UPDATE0,1I2,1W2,1F3,1I3,1W3,1REDUCE_GRAD1,"
            "1UPDATE1");
  // One window has no number, as in PyTorch's files.
  EXPECT_EQ(amdp({.order = AmdpOrder::r, .devices = 2, .microbatches = 1}).program_text(1),
            "1F0,1I0,1W0,1REDUCE_GRAD,1UPDATE");
}

// Every order, many sizes and update slots: proved, at most one update between a forward and its
// backward, and only in the first microbatches of a window.
TEST(Amdp, MismatchIsAtMostOne) {
  int seen = 0;
  for (const AmdpOrder order : {AmdpOrder::a, AmdpOrder::r, AmdpOrder::t, AmdpOrder::rounded_a})
    for (const int devices : {2, 3, 4, 5, 6, 7, 8, 10, 12, 16})
      for (const int blocks : {1, 2, 4})
        for (const bool fused : {false, true})
          for (const int border : {0, 2})
            for (const int slot : {0, 3}) {
              const int rounded = (devices + 3) / 4 * 4, pipes = (devices + 1) / 2;
              const int block = order == AmdpOrder::r           ? pipes
                                : order == AmdpOrder::rounded_a ? rounded
                                                                : devices;
              const Wanted wanted{order, devices, blocks * block, 3, fused, border, slot};
              Schedule schedule;
              try {
                schedule = amdp(wanted);
              } catch (const UserError&) {
                continue;
              }
              SCOPED_TRACE(fmt::format("{} d={} M={} fused={} border={} u={}", name_of(order),
                                       devices, blocks * block, fused, border, slot));
              const Validation validation =
                  validate(schedule, {.staleness = {.max_mismatch = 1, .max_delay = 1}});
              ASSERT_TRUE(validation.valid()) << validation.problems.front().line();
              const Staleness staleness = staleness_of(schedule);
              EXPECT_LE(staleness.mismatched_microbatches, block);
              EXPECT_EQ(staleness.max_delay, 1);
              for (const int accumulators : staleness.accumulators)
                EXPECT_EQ(accumulators, 1);
              ++seen;
            }
  EXPECT_GT(seen, 150);
}

TEST(Amdp, TheMismatchedShareFollowsTheUpdateSlot) {
  const auto share = [](const Wanted& wanted) {
    return staleness_of(amdp(wanted)).mismatch_share();
  };
  EXPECT_EQ(share({AmdpOrder::a, 8, 32, 3, false, 0, 8}), 7.0 / 32);
  EXPECT_EQ(share({AmdpOrder::a, 8, 32, 3, false, 0, 3}), 2.0 / 32);
  EXPECT_EQ(share({AmdpOrder::a, 8, 32, 3, true, 2, 0}), 7.0 / 32);
  EXPECT_EQ(share({AmdpOrder::r, 8, 32, 3}), 4.0 / 32);
}

TEST(Amdp, AutomaticIsTheFastestThenTheSmallest) {
  const Generator& generator = find_generator("amdp");
  const auto chosen = [&](const Wanted& wanted, OpTimes times = {}) {
    GeneratorOptions options = options_of(wanted);
    options.times = times;
    const AsynchronousOptions a = generator.settle(options).asynchronous;
    return fmt::format("{} {}", a.order, a.border);
  };
  const Wanted split{.devices = 8, .microbatches = 32, .windows = 4};
  EXPECT_EQ(chosen(split), "T 0");
  Wanted fused = split;
  fused.fused = true;
  EXPECT_EQ(chosen(fused), "A 2");
  EXPECT_EQ(chosen({.devices = 5, .microbatches = 24, .windows = 4}), "R 0");
  EXPECT_EQ(chosen({.devices = 6, .microbatches = 24, .windows = 4, .fused = true}), "rounded-A 2");
  // A window that T and A do not take.
  EXPECT_EQ(chosen({.devices = 8, .microbatches = 4, .windows = 4}), "R 0");
}

TEST(Amdp, AFrozenOrderIsProvedLikeAnyOther) {
  for (const int devices : {2, 3, 4, 8})
    for (const int pipes : {1, 2, 4})
      for (const int in_flight : {1, 2}) {
        GeneratorOptions options = options_of(
            {.order = AmdpOrder::frozen, .devices = devices, .microbatches = 16, .windows = 3});
        options.asynchronous.pipes = pipes;
        options.asynchronous.in_flight = in_flight;
        const Schedule schedule = generate_schedule("amdp", options);
        const Validation validation = validate(schedule, {.staleness = {1, 1}});
        EXPECT_TRUE(validation.valid()) << validation.problems.front().line();
        EXPECT_EQ(schedule.num_pipes(), pipes);
      }
}

TEST(Amdp, AMistakeSaysWhatWouldDo) {
  EXPECT_EQ(refusal("amdp", options_of({.devices = 1})),
            "`devices` is 1: amdp needs at least 2; on one device nothing waits");
  EXPECT_EQ(refusal("amdp", options_of({.order = AmdpOrder::a, .devices = 6})),
            "`devices` is 6: order A needs a multiple of 4; T takes an even one, rounded-A and R "
            "take any number");
  EXPECT_EQ(refusal("amdp", options_of({.order = AmdpOrder::a, .devices = 5})),
            "`devices` is 5: order A needs a multiple of 4; rounded-A and R take any number");
  EXPECT_EQ(refusal("amdp", options_of({.order = AmdpOrder::t, .devices = 5})),
            "`devices` is 5: order T needs an even number; R and rounded-A take any");
  EXPECT_EQ(refusal("amdp", options_of({.order = AmdpOrder::a, .microbatches = 10})),
            "`microbatches` is 10: order A on 4 devices needs a multiple of 4 for each window; use "
            "8 or 12");
  EXPECT_EQ(
      refusal("amdp", options_of({.order = AmdpOrder::rounded_a, .devices = 6, .microbatches = 6})),
      "`microbatches` is 6: order rounded-A on 6 devices needs a multiple of 8 for each "
      "window; use 8");
  EXPECT_EQ(refusal("amdp", options_of({.devices = 6, .microbatches = 7})),
            "`microbatches` is 7: order R on 6 devices needs a multiple of 3 for each window; use "
            "6 or 9");
  EXPECT_EQ(refusal("amdp", options_of({.order = AmdpOrder::a, .update_slot = 2})),
            "`update_slot` is 2: order A on 4 devices loses no gradient with 3 to 4; leave the "
            "`field` out");
  EXPECT_EQ(refusal("amdp", options_of({.order = AmdpOrder::r, .update_slot = 3})),
            "`update_slot` is 3: order R on 4 devices loses no gradient with 4 alone; leave the "
            "`field` out");
  EXPECT_EQ(refusal("amdp", options_of({.order = AmdpOrder::r, .border = 2})),
            "`border` is 2: order R has no border of blocks; A and rounded-A have");
  GeneratorOptions options = options_of({.order = AmdpOrder::t});
  options.asynchronous.pipes = 3;
  EXPECT_EQ(refusal("amdp", options),
            "`pipes` is 3: order T has its own number; order frozen takes any");
  EXPECT_EQ(refusal("1f1b", options), "`order` is T: 1f1b does not read it; amdp does");
  EXPECT_EQ(refusal("zb-h1", options_of({.windows = 2})),
            "`windows` is 2: zb-h1 updates the weights once, behind its last microbatch; amdp, "
            "async-1f1b, pipedream, pipedream-2bw and xpipe go on");
  EXPECT_EQ(refusal("pipedream-2bw", options_of({.microbatches = 3})),
            "`microbatches` is 3: pipedream-2bw on 4 devices needs at least 4 for each window, or "
            "two versions of the weights are not enough; async-1f1b takes fewer");
}

Schedule one_pipe(const std::string& name, int devices, int microbatches, int windows,
                  std::optional<WeightVersions> weights = {}) {
  GeneratorOptions options;
  options.devices = devices;
  options.microbatches = microbatches;
  options.windows = windows;
  options.asynchronous.weights = weights;
  return generate_schedule(name, options);
}

TEST(OnePipe, StalenessIsWhatTheMethodsAreKnownFor) {
  const auto text = [](const Schedule& schedule) {
    const Staleness s = staleness_of(schedule);
    EXPECT_TRUE(validate(schedule).valid());
    return fmt::format("mismatch {} delay {} copies {} accumulators {}", s.max_mismatch(),
                       s.max_delay,
                       *std::max_element(s.weight_copies.begin(), s.weight_copies.end()),
                       *std::max_element(s.accumulators.begin(), s.accumulators.end()));
  };
  const int d = 8;
  EXPECT_EQ(text(one_pipe("async-1f1b", d, 32, 4)), "mismatch 1 delay 1 copies 1 accumulators 2");
  EXPECT_EQ(text(one_pipe("async-1f1b", d, 7, 8)), "mismatch 1 delay 1 copies 1 accumulators 2");
  EXPECT_EQ(text(one_pipe("async-1f1b", d, 6, 8)), "mismatch 2 delay 2 copies 1 accumulators 2");
  EXPECT_EQ(text(one_pipe("pipedream-2bw", d, 8, 5)), "mismatch 0 delay 1 copies 2 accumulators 2");
  EXPECT_EQ(text(one_pipe("xpipe", d, 8, 5)), "mismatch 1 delay 1 copies 2 accumulators 2");
  EXPECT_EQ(text(one_pipe("pipedream", d, 1, 20)), "mismatch 0 delay 7 copies 8 accumulators 1");
  EXPECT_EQ(text(one_pipe("pipedream", d, 1, 20, WeightVersions::newest)),
            "mismatch 7 delay 7 copies 1 accumulators 1");
}

// Of PipeDream the stage decides: stage s of d lacks d - 1 - s updates.
TEST(OnePipe, PipedreamsDelayShrinksTowardsTheLastStage) {
  const Staleness staleness = staleness_of(one_pipe("pipedream", 4, 1, 12));
  EXPECT_EQ(staleness.weight_copies, (std::vector<int>{4, 3, 2, 1}));
}

std::vector<std::string> problems_of(const Schedule& schedule, StalenessBounds bounds = {}) {
  std::vector<std::string> out;
  for (const Problem& problem : validate(schedule, {.staleness = bounds}).problems)
    out.push_back(problem.line());
  return out;
}

TEST(Staleness, ABoundThatIsExceededNamesTheOps) {
  EXPECT_EQ(problems_of(one_pipe("async-1f1b", 4, 2, 3), {1, -1}),
            (std::vector<std::string>{
                "device 0, position 18, 0I4: 2 updates come between 0F4 and it, and the mismatch "
                "may be 1 at most"}));
  EXPECT_EQ(problems_of(one_pipe("pipedream", 2, 1, 4), {0, 0}),
            (std::vector<std::string>{"device 0, position 1, 0F1: its weights lack 1 update "
                                      "(0UPDATE0 comes later), and the delay may be 0 at most"}));
  EXPECT_EQ(problems_of(one_pipe("pipedream", 2, 1, 4), {0, 1}), std::vector<std::string>{});
  // Two versions are not enough for windows of one microbatch.
  Schedule schedule = one_pipe("async-1f1b", 4, 1, 5);
  schedule.weights = WeightVersions::previous;
  EXPECT_EQ(problems_of(schedule).front(),
            "device 0, position 2, 0F2: 0UPDATE0 must come before it");
}

// Each misplacement is found by the proof, which says what it would do.
TEST(Windows, AnUpdateInTheWrongPlaceIsRefused) {
  const auto problems = [](const std::string& from, const std::string& to) {
    const std::string text =
        write_schedule(amdp({.order = AmdpOrder::r, .devices = 2, .microbatches = 2, .windows = 2}),
                       TextFlavour::native);
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    std::string changed = text;
    changed.replace(at, from.size(), to);
    return problems_of(read_schedule(changed));
  };
  EXPECT_EQ(problems("0I1,0W1,0REDUCE_GRAD0", "0REDUCE_GRAD0,0I1,0W1"),
            (std::vector<std::string>{"device 0, position 5, 0REDUCE_GRAD0: 0W1 must come before "
                                      "it: its gradient would be lost"}));
  EXPECT_EQ(problems("0W1,0REDUCE_GRAD0,0UPDATE0", "0UPDATE0,0W1,0REDUCE_GRAD0"),
            (std::vector<std::string>{
                "device 0, position 6, 0UPDATE0: 0REDUCE_GRAD0 must come before it"}));
  EXPECT_EQ(problems("0REDUCE_GRAD0,0UPDATE0", "0REDUCE_GRAD0"),
            (std::vector<std::string>{
                "device 0, 0UPDATE0: is missing: where weights are updated, each device has a "
                "REDUCE_GRAD and an UPDATE of every stage that it holds"}));
  EXPECT_EQ(problems("0UPDATE0", "0UPDATE1"),
            (std::vector<std::string>{
                "device 0, position 15, 0UPDATE1: appears a second time",
                "device 0, 0UPDATE0: is missing: where weights are updated, each device has a "
                "REDUCE_GRAD and an UPDATE of every stage that it holds",
                "device 0, position 8, 0UPDATE1: 0REDUCE_GRAD1 must come before it",
                "device 0, position 8, 0UPDATE1: deadlock: device 0 at position 8 (0UPDATE1) waits "
                "for 1REDUCE_GRAD1; device 1 at position 11 (1F3) waits for 0F3"}));
  // Nobody waits for an update that comes one forward earlier.
  EXPECT_EQ(problems("1W1,1REDUCE_GRAD0,1F2,1UPDATE0", "1W1,1REDUCE_GRAD0,1UPDATE0,1F2"),
            std::vector<std::string>{});
  // Device 0 reduces behind a backward of the new window, which device 1 runs behind its update.
  EXPECT_EQ(problems("0F2,0I1,0W1,0REDUCE_GRAD0,0UPDATE0,0F3,0I2,0W2",
                     "0F2,0I2,0W2,0I1,0W1,0REDUCE_GRAD0,0UPDATE0,0F3"),
            (std::vector<std::string>{
                "device 0, position 5, 0I2: deadlock: device 0 at position 5 (0I2) waits for 1I2; "
                "device 1 at position 8 (1UPDATE0) waits for 0REDUCE_GRAD0"}));
}

TEST(Windows, TheFirstOnesAreTheScheduleOfFewer) {
  for (const AmdpOrder order : {AmdpOrder::a, AmdpOrder::r, AmdpOrder::t})
    for (const int windows : {1, 2, 3})
      EXPECT_EQ(first_windows(amdp({order, 4, 8, 4}), windows), amdp({order, 4, 8, windows}));
}

}  // namespace
}  // namespace sluice
