// Runs of any length are made of the parts that few windows have.
#include "sluice/schedule/endless.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "sluice/base/error.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/validate.h"

namespace sluice {
namespace {

struct Case {
  const char* schedule;
  int devices, microbatches;
  AmdpOrder order = AmdpOrder::automatic;
  bool fused = false;
  int head = 1;
};

const Case kRuns[] = {{"amdp", 4, 4, AmdpOrder::a},
                      {"amdp", 4, 8, AmdpOrder::a, true},
                      {"amdp", 8, 8, AmdpOrder::a},
                      {"amdp", 2, 2, AmdpOrder::r},
                      {"amdp", 3, 4, AmdpOrder::r},
                      {"amdp", 6, 6, AmdpOrder::r, true},
                      {"amdp", 4, 8, AmdpOrder::t},
                      {"amdp", 6, 6, AmdpOrder::t},
                      {"amdp", 6, 8, AmdpOrder::rounded_a},
                      {"amdp", 4, 8, AmdpOrder::frozen},
                      {"async-1f1b", 4, 8},
                      {"async-1f1b", 4, 3},
                      {"async-1f1b", 4, 1, AmdpOrder::automatic, false, 3},
                      {"pipedream", 4, 1, AmdpOrder::automatic, false, 3},
                      {"pipedream", 4, 2, AmdpOrder::automatic, true, 2},
                      {"pipedream-2bw", 4, 4},
                      {"xpipe", 4, 6}};

Schedule lowered(const Case& run, int windows) {
  GeneratorOptions options;
  options.devices = run.devices;
  options.microbatches = run.microbatches;
  options.windows = windows;
  options.asynchronous.order = run.order;
  options.asynchronous.fused = run.fused;
  Validation validation = validate(generate_schedule(run.schedule, options));
  EXPECT_TRUE(validation.valid()) << run.schedule;
  return std::move(validation.lowered);
}

std::string without_messages(Schedule schedule) {
  for (Program& program : schedule.programs)
    std::erase_if(program, [](const Op& op) { return is_communication(op.kind); });
  return write_schedule(schedule, TextFlavour::native);
}

std::string text(const Case& run) {
  return fmt::format("{} {} on {}, {} microbatches{}", run.schedule, name_of(run.order),
                     run.devices, run.microbatches, run.fused ? ", fused" : "");
}

TEST(Endless, AnyNumberOfWindowsIsTheScheduleOfSoMany) {
  for (const Case& run : kRuns) {
    SCOPED_TRACE(text(run));
    const EndlessSchedule endless(lowered(run, 8));
    EXPECT_LE(endless.head(), run.head);
    for (const int windows : {1, 2, 3, 4, 5, 7, 8, 11}) {
      const Schedule whole = endless.whole(windows);
      EXPECT_TRUE(validate(whole).valid()) << windows;
      EXPECT_EQ(without_messages(whole), without_messages(lowered(run, windows))) << windows;
    }
  }
}

TEST(Endless, ItsPartsEndWithTheUpdatesOfTheirWindow) {
  for (const Case& run : kRuns) {
    SCOPED_TRACE(text(run));
    const EndlessSchedule endless(lowered(run, 8));
    for (int device = 0; device < run.devices; ++device)
      for (const int window : {0, 1, 5, 99'999}) {
        const Program part = endless.part(device, window, 100'000);
        ASSERT_FALSE(part.empty());
        EXPECT_EQ(part.back().kind, OpKind::Update);
        EXPECT_EQ(part.back().microbatch, window);
        for (const Op& op : part)
          if (has_microbatch(op.kind)) {
            EXPECT_GE(op.microbatch, window * run.microbatches);
            EXPECT_LT(op.microbatch, 100'000 * run.microbatches);
          }
      }
  }
}

// What a run has done at a joint beyond the windows before it is what one that begins there catches
// up on, and every receive behind the joint has its send before or behind it.
TEST(Endless, AJointKnowsWhatIsUnderWay) {
  constexpr int kJoint = 5, kCount = 9;
  for (const Case& run : kRuns) {
    SCOPED_TRACE(text(run));
    const EndlessSchedule endless(lowered(run, 8));
    std::set<std::string> sent, received;
    for (int device = 0; device < run.devices; ++device) {
      for (const auto& early : endless.early(device, kJoint, kCount)) {
        EXPECT_LT(early.part, kJoint);
        EXPECT_GE(early.op.microbatch, kJoint * run.microbatches);
        if (is_send(early.op.kind))
          sent.insert(fmt::format("{} {} {}", early.op.kind == OpKind::SendF ? "F" : "B",
                                  partner_stage(early.op), early.op.microbatch));
        if (is_recv(early.op.kind))
          received.insert(fmt::format("{} {} {}", early.op.kind == OpKind::RecvF ? "F" : "B",
                                      early.op.stage, early.op.microbatch));
      }
      for (const Op& op : endless.under_way(device, kJoint, kCount))
        EXPECT_TRUE(received
                        .insert(fmt::format("{} {} {}", op.kind == OpKind::RecvF ? "F" : "B",
                                            op.stage, op.microbatch))
                        .second);
    }
    EXPECT_EQ(sent, received);
  }
}

std::string refusal(const Schedule& windows) {
  try {
    EndlessSchedule endless(windows);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Endless, AScheduleThatDoesNotRepeatIsRefused) {
  EXPECT_NE(refusal(lowered({"async-1f1b", 4, 8}, 2)).find("has 2 windows, of which none repeats"),
            std::string::npos);
  // The same windows in another order on one device.
  Schedule other = lowered({"async-1f1b", 2, 4}, 6);
  Program& program = other.programs[1];
  const auto last = std::find_if(program.begin(), program.end(), [](const Op& op) {
    return op.kind == OpKind::W && op.microbatch == 22;
  });
  std::swap(*last, *(last + 1));
  EXPECT_NE(refusal(other).find("of which none repeats"), std::string::npos);
}

}  // namespace
}  // namespace sluice
