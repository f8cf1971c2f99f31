// One test per kind of problem: the exact line, because the line is what a user gets to see.
#include "sluice/schedule/validate.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/transforms/communication.h"

namespace sluice {
namespace {

using Lines = std::vector<std::string>;

Lines problems_of(std::string_view text, int max_buffers = -1) {
  Lines lines;
  const Schedule schedule = read_schedule(text);
  for (const Problem& problem : validate(schedule, {.max_buffers = max_buffers}).problems)
    lines.push_back(problem.line());
  return lines;
}

TEST(ValidateTest, AcceptsSmallSchedulesOfEveryForm) {
  EXPECT_EQ(problems_of("0F0,0B0\n"), Lines{});
  EXPECT_EQ(problems_of("0F0,0I0,0W0\n"), Lines{});
  EXPECT_EQ(problems_of("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), Lines{});
  EXPECT_EQ(problems_of("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"), Lines{});
  EXPECT_EQ(problems_of("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0UPDATE,0RESHARD\n"), Lines{});
}

TEST(ValidateTest, ProblemLineLeavesOutWhatIsNotKnown) {
  EXPECT_EQ((Problem{1, 4, "1B0", "is bad"}).line(), "device 1, position 4, 1B0: is bad");
  EXPECT_EQ((Problem{1, -1, "1B0", "is bad"}).line(), "device 1, 1B0: is bad");
  EXPECT_EQ((Problem{-1, -1, "", "all is bad"}).line(), "all is bad");
}

TEST(ValidateTest, MissingOpIsNamedOnceAndNotAgainAtItsUses) {
  EXPECT_EQ(problems_of("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n"),
            Lines{"device 1, 1B1: is missing, and so are I and W in its place"});
  EXPECT_EQ(problems_of("0F0,0B0,0B1\n1F0,1B0,1F1,1B1\n"), Lines{"device 0, 0F1: is missing"});
  EXPECT_EQ(problems_of("0F0,0W0\n"), Lines{"device 0, 0I0: is missing"});
  EXPECT_EQ(problems_of("0F0,0I0\n"), Lines{"device 0, 0W0: is missing"});
}

TEST(ValidateTest, MissingOpOfALoweredScheduleIsNamedOnce) {
  EXPECT_EQ(problems_of("0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            Lines{"device 0, 0F0: is missing"});
}

TEST(ValidateTest, SecondTimeIsReportedWhereItStands) {
  EXPECT_EQ(problems_of("0F0,0F0,0B0\n"),
            Lines{"device 0, position 1, 0F0: appears a second time"});
  EXPECT_EQ(problems_of("0F0,0SEND_F0,0RECV_B0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            (Lines{"device 0, position 3, 0RECV_B0: appears a second time",
                   "device 0, position 3, 0RECV_B0: device 1 has no send for it"}));
}

TEST(ValidateTest, FullBackwardBesideASplitOneIsAProblem) {
  EXPECT_EQ(
      problems_of("0F0,0I0,0B0\n"),
      Lines{"device 0, position 2, 0B0: this microbatch already has a split backward (I or W)"});
  EXPECT_EQ(problems_of("0F0,0B0,0W0\n"),
            Lines{"device 0, position 2, 0W0: this microbatch already has a full backward (B)"});
}

TEST(ValidateTest, OpOnAnotherDeviceThanItsStageIsAProblem) {
  EXPECT_EQ(problems_of("# sluice {\"placement\":\"linear\"}\n0F0,0B0,1B0\n1F0\n"),
            Lines{"device 0, position 2, 1B0: stage 1 is on device 1"});
}

TEST(ValidateTest, MicrobatchInAnotherPipeIsAProblem) {
  EXPECT_EQ(problems_of("0F0@0,0B0@0,0F1@0,0B1@1\n"),
            Lines{"device 0, position 2, 0F1@0: microbatch 1 runs in pipe 1 of 2"});
}

TEST(ValidateTest, NumbersPastTheMetadataAreProblems) {
  EXPECT_EQ(problems_of("# sluice {\"stages\":1,\"microbatches\":1,\"slices\":1,\"pipes\":1}\n"
                        "0F0,0B0,1F0,0F1,0F0.1,0F0@1\n"),
            (Lines{"device 0, position 2, 1F0: the schedule has stages 0..0",
                   "device 0, position 3, 0F1: the schedule has microbatches 0..0",
                   "device 0, position 4, 0F0.1: the schedule has slices 0..0",
                   "device 0, position 5, 0F0@1: the schedule has pipes 0..0"}));
}

TEST(ValidateTest, UseBeforeALocalInputIsAProblem) {
  EXPECT_EQ(problems_of("0B0,0F0\n"), Lines{"device 0, position 0, 0B0: 0F0 must come before it"});
  EXPECT_EQ(problems_of("0F0,0W0,0I0\n"),
            Lines{"device 0, position 1, 0W0: 0I0 must come before it"});
  EXPECT_EQ(problems_of("0F0,1F0,0B0,1B0\n"),
            Lines{"device 0, position 2, 0B0: 1B0 must come before it"});
}

TEST(ValidateTest, SlicesGoForwardFirstToLastAndBackwardLastToFirst) {
  EXPECT_EQ(problems_of("0F0.0,0F0.1,0B0.1,0B0.0\n"), Lines{});
  EXPECT_EQ(problems_of("0F0.1,0F0.0,0B0.1,0B0.0\n"),
            Lines{"device 0, position 0, 0F0.1: 0F0.0 must come before it"});
  EXPECT_EQ(problems_of("0F0.0,0F0.1,0B0.0,0B0.1\n"),
            Lines{"device 0, position 2, 0B0.0: 0B0.1 must come before it"});
}

TEST(ValidateTest, UseBeforeTheReceiveIsAProblem) {
  EXPECT_EQ(problems_of("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n"),
            Lines{"device 1, position 0, 1F0: 1RECV_F0 must come before it"});
}

TEST(ValidateTest, SendBeforeItsOpIsAProblem) {
  EXPECT_EQ(problems_of("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            Lines{"device 0, position 0, 0SEND_F0: 0F0 must come before it"});
  EXPECT_EQ(problems_of("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1SEND_B0,1B0\n"),
            Lines{"device 1, position 2, 1SEND_B0: 1B0 must come before it"});
}

TEST(ValidateTest, SendWithoutReceiveIsAProblem) {
  EXPECT_EQ(problems_of("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n"),
            (Lines{"device 1, position 0, 1F0: 1RECV_F0 must come before it",
                   "device 0, position 1, 0SEND_F0: device 1 has no receive for it"}));
}

TEST(ValidateTest, ReceiveWithoutSendIsAProblem) {
  EXPECT_EQ(problems_of("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            Lines{"device 1, position 0, 1RECV_F0: device 0 has no send for it"});
}

TEST(ValidateTest, ReceivesInAnotherOrderThanTheSendsAreAProblem) {
  EXPECT_EQ(
      problems_of("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                  "1RECV_F1,1RECV_F0,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"),
      Lines{"device 1, position 0, 1RECV_F1: receive 0 from device 0 meets 0SEND_F0 (position "
            "1 there): order differs"});
}

TEST(ValidateTest, TransferWithoutAPartnerIsAProblem) {
  EXPECT_EQ(problems_of("0F0,0SEND_F0,0RECV_B0,0B0,0SEND_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            Lines{"device 0, position 4, 0SEND_B0: there is no stage -1 to exchange it with"});
  EXPECT_EQ(
      problems_of("0F0,0SEND_F0,1F0,1B0,0B0\n"),
      Lines{"device 0, position 1, 0SEND_F0: stage 1 is on the same device: nothing to send"});
}

TEST(ValidateTest, CycleBetweenTwoDevicesIsShownWhole) {
  EXPECT_EQ(
      problems_of("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"),
      Lines{"device 0, position 1, 0B0: deadlock: device 0 at position 1 (0B0) waits for 1B0; "
            "device 1 at position 1 (1F1) waits for 0F1"});
}

TEST(ValidateTest, CycleBetweenThreeDevicesIsShownWhole) {
  EXPECT_EQ(
      problems_of("3F0,0F0,3B0,0B0\n1F0,1B0\n2F0,2B0\n"),
      Lines{"device 0, position 0, 3F0: deadlock: device 0 at position 0 (3F0) waits for 2F0; "
            "device 2 at position 0 (2F0) waits for 1F0; device 1 at position 0 (1F0) waits "
            "for 0F0"});
}

TEST(ValidateTest, OnlyTheDevicesOfACycleAreNamed) {
  EXPECT_EQ(
      problems_of("0F0,0I0,0W0,0F1,0I1,0W1\n"
                  "1F0,1I0,1F1,1I1,1W0,1W1\n"
                  "2F0,2F1,2I0,2I1,2W0,2W1\n"),
      Lines{"device 1, position 1, 1I0: deadlock: device 1 at position 1 (1I0) waits for 2I0; "
            "device 2 at position 1 (2F1) waits for 1F1"});
}

TEST(ValidateTest, DeadlockOfRendezvousAloneIsFound) {
  // Every input comes and all messages meet in order, but both devices send before they post.
  EXPECT_EQ(
      problems_of("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                  "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"),
      Lines{"device 0, position 3, 0SEND_F1: deadlock: device 0 at position 3 (0SEND_F1) waits "
            "for device 1 to post its receive; device 1 at position 3 (1SEND_B0) waits for "
            "device 0 to post its receive"});
}

TEST(ValidateTest, DeadlockOfLoweredComputeIsFound) {
  EXPECT_EQ(problems_of("0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
                        "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"),
            Lines{"device 0, position 3, 0B0: deadlock: device 0 at position 3 (0B0) waits for "
                  "device 1 to send its input; device 1 at position 3 (1F1) waits for device 0 to "
                  "send its input"});
}

TEST(ValidateTest, MoreReceiveBuffersThanAllowedAreAProblem) {
  const std::string_view text = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
  EXPECT_EQ(problems_of(text, 1), Lines{});
  EXPECT_EQ(problems_of(text, 0),
            (Lines{"device 0, position 4, 0RECV_B0: needs more than 0 receive buffers (position in "
                   "the lowered program)",
                   "device 1, position 0, 1RECV_F0: needs more than 0 receive buffers (position in "
                   "the lowered program)"}));
  EXPECT_EQ(problems_of("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 0),
            (Lines{"device 0, position 2, 0RECV_B0: needs more than 0 receive buffers",
                   "device 1, position 0, 1RECV_F0: needs more than 0 receive buffers"}));
}

TEST(ValidateTest, ADeadlockIsFoundEvenWhereBuffersAreTooMany) {
  EXPECT_EQ(problems_of("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
                        0)
                .size(),
            3u);
}

TEST(ValidateTest, ReceiveBuffersAreCountedFromPostToUse) {
  // Device 1 posts 1F1's receive while 1F0 has still to run its backward: 1F0's is used by then.
  const Validation one_f_one_b = validate(read_schedule("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"));
  EXPECT_EQ(one_f_one_b.receive_buffers, (std::vector<int>{1, 1}));
  // All three activations are there before device 1 takes up the second.
  const Validation posted_early = validate(read_schedule(
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n"
      "1RECV_F0,1RECV_F1,1RECV_F2,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1F2,1B2,1SEND_B2"));
  EXPECT_TRUE(posted_early.valid());
  EXPECT_EQ(posted_early.receive_buffers, (std::vector<int>{1, 3}));
  const Validation alone = validate(read_schedule("0F0,0B0\n"));
  EXPECT_EQ(alone.receive_buffers, (std::vector<int>{0}));
}

TEST(ValidateTest, MembersOfAGroupDoNotFeedEachOther) {
  EXPECT_EQ(problems_of("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"), Lines{});
  EXPECT_EQ(problems_of("(0F0;0B0)OVERLAP_F_B\n"),
            Lines{"device 0, position 1, 0B0: 0F0 must come before it"});
  EXPECT_EQ(problems_of("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,(1F0;1B0)OVERLAP_F_B,1SEND_B0\n"),
            Lines{"device 1, position 2, 1B0: 1F0 must come before it"});
}

TEST(ValidateTest, AGroupWaitsForAllItsMembers) {
  EXPECT_EQ(
      problems_of("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n"),
      Lines{"device 0, position 2, 0B0: deadlock: device 0 at position 2 (0B0) waits for 1B0; "
            "device 1 at position 1 (1F1) waits for 0F1"});
}

TEST(ValidateTest, OnlyComputeOpsMayFormAGroup) {
  EXPECT_EQ(problems_of("0F0,(0B0;0REDUCE_GRAD)OVERLAP_F_B\n"),
            Lines{"device 0, position 2, 0REDUCE_GRAD: only F, I, W and B may run as one group"});
  EXPECT_EQ(problems_of("0F0,(0SEND_F0;0RECV_B0)OVERLAP_F_B,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            (Lines{"device 0, position 1, 0SEND_F0: only F, I, W and B may run as one group",
                   "device 0, position 2, 0RECV_B0: only F, I, W and B may run as one group"}));
}

TEST(ValidateTest, IndependentMistakesAreAllReturnedAtOnce) {
  // Device 0 repeats 0F0; device 1 has 1B0 before 1F0 and lacks 1W2.
  EXPECT_EQ(problems_of("0F0,0F1,0F2,0B0,0F0,0B1,0B2\n1B0,1F0,1F1,1B1,1F2,1I2\n"),
            (Lines{"device 0, position 4, 0F0: appears a second time", "device 1, 1W2: is missing",
                   "device 1, position 0, 1B0: 1F0 must come before it"}));
  // Two slips of order in one program, and an op on a wrong device beside a missing one.
  EXPECT_EQ(problems_of("0B0,0F0,0B1,0F1\n"),
            (Lines{"device 0, position 0, 0B0: 0F0 must come before it",
                   "device 0, position 2, 0B1: 0F1 must come before it"}));
  EXPECT_EQ(problems_of("# sluice {\"placement\":\"linear\"}\n0F0,1B0\n1F0\n"),
            (Lines{"device 0, position 1, 1B0: stage 1 is on device 1",
                   "device 0, 0B0: is missing, and so are I and W in its place"}));
}

TEST(ValidateTest, IndependentMistakesOfALoweredScheduleAreAllReturnedAtOnce) {
  EXPECT_EQ(
      problems_of("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B1,0B0,0RECV_B0,0B1\n"
                  "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1,1B1\n"),
      (Lines{"device 1, position 8, 1B1: appears a second time",
             "device 0, position 5, 0B0: 0RECV_B0 must come before it",
             "device 0, position 4, 0RECV_B1: receive 0 from device 1 meets 1SEND_B0 (position "
             "5 there): order differs"}));
}

TEST(ValidateTest, TheProvedFormIsHandedBack) {
  GeneratorOptions options;
  options.devices = 3;
  options.microbatches = 5;
  const Schedule schedule = generate_schedule("1f1b", options);
  const Validation of_compute = validate(schedule);
  EXPECT_TRUE(of_compute.valid());
  EXPECT_EQ(of_compute.lowered, add_communication(schedule).schedule);
  const Validation of_lowered = validate(of_compute.lowered);
  EXPECT_TRUE(of_lowered.valid());
  EXPECT_EQ(of_lowered.lowered, of_compute.lowered);
  EXPECT_EQ(of_lowered.receive_buffers, of_compute.receive_buffers);
}

TEST(Validate, ReductionsAndUpdatesNeedAGradientBeforeThem) {
  const auto lines = [](const std::string& text) {
    std::vector<std::string> out;
    for (const Problem& problem : validate(read_schedule(text)).problems)
      out.push_back(problem.line());
    return out;
  };
  EXPECT_TRUE(lines("0F0,0B0,0REDUCE_GRAD,0UPDATE\n").empty());
  EXPECT_TRUE(lines("0F0,0B0,0REDUCE_GRAD0,0UPDATE0,0F1,0B1,0REDUCE_GRAD1,0UPDATE1\n").empty());
  EXPECT_EQ(lines("0UPDATE,0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n"),
            (std::vector<std::string>{
                "device 0, position 4, 0REDUCE_GRAD: appears a second time; where there are "
                "several windows, number them: 0REDUCE_GRAD0, 0REDUCE_GRAD1, ...",
                "device 0, position 0, 0UPDATE: 0REDUCE_GRAD must come before it"}));
  EXPECT_EQ(lines("0F0,0I0,0F1,0B1,0REDUCE_GRAD,0W0\n"),
            (std::vector<std::string>{"device 0, position 4, 0REDUCE_GRAD: 0W0 must come before "
                                      "it: its gradient would be lost"}));
}

}  // namespace
}  // namespace sluice
