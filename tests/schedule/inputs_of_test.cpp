// The one statement of dependencies, written out by hand for a schedule of three stages, two
// slices.
#include <gtest/gtest.h>

#include <string>

#include "sluice/schedule/schedule.h"

namespace sluice {
namespace {

constexpr int kStages = 3;
constexpr int kSlices = 2;

// "0F5.1 1F5.0": the inputs of an op of microbatch 5.
std::string inputs_text(OpKind kind, int stage, int slice, int num_slices = kSlices) {
  std::string text;
  for (const Op& input : inputs_of(make_op(kind, stage, 5, slice), kStages, num_slices))
    text += (text.empty() ? "" : " ") + op_text(input, num_slices > 1, false);
  return text;
}

TEST(InputsOfTest, ForwardNeedsTheStageBeforeAndTheSliceBefore) {
  EXPECT_EQ(inputs_text(OpKind::F, 0, 0), "");
  EXPECT_EQ(inputs_text(OpKind::F, 1, 0), "0F5.0");
  EXPECT_EQ(inputs_text(OpKind::F, 0, 1), "0F5.0");
  EXPECT_EQ(inputs_text(OpKind::F, 2, 1), "1F5.1 2F5.0");
}

TEST(InputsOfTest, BackwardNeedsItsForwardTheStageAfterAndTheSliceAfter) {
  for (const OpKind kind : {OpKind::I, OpKind::B}) {
    EXPECT_EQ(inputs_text(kind, 2, 1), "2F5.1");
    EXPECT_EQ(inputs_text(kind, 2, 0), "2F5.0 2I5.1");
    EXPECT_EQ(inputs_text(kind, 0, 1), "0F5.1 1I5.1");
    EXPECT_EQ(inputs_text(kind, 1, 0), "1F5.0 2I5.0 1I5.1");
  }
}

TEST(InputsOfTest, WeightGradientNeedsItsOwnInputGradientOnly) {
  EXPECT_EQ(inputs_text(OpKind::W, 0, 0), "0I5.0");
  EXPECT_EQ(inputs_text(OpKind::W, 2, 1), "2I5.1");
}

TEST(InputsOfTest, SendNeedsWhatItSendsAndReceiveNeedsItsSend) {
  EXPECT_EQ(inputs_text(OpKind::SendF, 1, 1), "1F5.1");
  EXPECT_EQ(inputs_text(OpKind::SendB, 1, 1), "1I5.1");
  EXPECT_EQ(inputs_text(OpKind::RecvF, 1, 1), "0SEND_F5.1");
  EXPECT_EQ(inputs_text(OpKind::RecvB, 1, 1), "2SEND_B5.1");
}

TEST(InputsOfTest, OneSliceNeedsNoNeighbours) {
  EXPECT_EQ(inputs_text(OpKind::F, 1, 0, 1), "0F5");
  EXPECT_EQ(inputs_text(OpKind::B, 1, 0, 1), "1F5 2I5");
}

TEST(InputsOfTest, ShardingOpsNeedNothing) {
  for (const OpKind kind : {OpKind::Unshard, OpKind::Reshard})
    EXPECT_EQ(inputs_of(make_op(kind, 1, -1), kStages, kSlices).size(), 0u);
}

TEST(InputsOfTest, InputsStayInTheirPipeAndLeaveTheGroup) {
  for (const Op& input : inputs_of(make_op(OpKind::B, 1, 5, 0, 1, true), kStages, kSlices)) {
    EXPECT_EQ(input.pipe, 1);
    EXPECT_EQ(input.microbatch, 5);
    EXPECT_FALSE(input.joined);
  }
}

// Two stages, a pipe in each direction over two devices, two windows of two microbatches.
Schedule two_windows(WeightVersions weights = WeightVersions::newest) {
  Schedule schedule;
  schedule.placement = Placement::mirrored(2);
  schedule.num_microbatches = 6;
  schedule.num_windows = 3;
  schedule.weights = weights;
  schedule.programs.resize(2);
  return schedule;
}

// "0W2 1UPDATE0@1": with the pipe where it is not 0.
std::string inputs_text(const Schedule& schedule, const Op& op) {
  std::string text;
  for (const Op& input : inputs_of(op, schedule))
    text += (text.empty() ? "" : " ") + op_text(input, false, input.pipe > 0);
  return text;
}

TEST(InputsOfTest, AReductionNeedsTheGradientsOfItsWindowOnItsDevice) {
  const Schedule schedule = two_windows();
  // Device 0 holds stage 1 in pipe 1 alone, whose microbatches are the odd ones.
  EXPECT_EQ(inputs_text(schedule, schedule.window_op(OpKind::ReduceGrad, 0, 0, 1)), "0W2");
  EXPECT_EQ(inputs_text(schedule, schedule.window_op(OpKind::ReduceGrad, 0, 1, 1)), "1W3@1");
}

TEST(InputsOfTest, AnUpdateNeedsEveryReductionTheUpdateBeforeAndItsOwner) {
  Schedule schedule = two_windows();
  const std::string reductions = "0REDUCE_GRAD1 0REDUCE_GRAD1@1 1REDUCE_GRAD1 1REDUCE_GRAD1@1";
  const Op owners = schedule.window_op(OpKind::Update, 0, 0, 1);
  EXPECT_EQ(inputs_text(schedule, owners), reductions + " 0UPDATE0");
  EXPECT_EQ(inputs_text(schedule, schedule.window_op(OpKind::Update, 1, 0, 1)),
            reductions + " 0UPDATE0@1 0UPDATE1");
  EXPECT_EQ(inputs_text(schedule, schedule.window_op(OpKind::Update, 0, 0, 0)),
            "0REDUCE_GRAD0 0REDUCE_GRAD0@1 1REDUCE_GRAD0 1REDUCE_GRAD0@1");
  schedule.updates_by_stage = true;
  EXPECT_EQ(inputs_text(schedule, owners), "0REDUCE_GRAD1 0REDUCE_GRAD1@1 0UPDATE0");
}

TEST(InputsOfTest, AForwardNeedsTheUpdateWhoseWeightsItIsToUse) {
  const auto forward = [](int microbatch) { return make_op(OpKind::F, 0, microbatch); };
  const Schedule schedule = two_windows(WeightVersions::previous);
  EXPECT_EQ(inputs_text(schedule, forward(2)), "");
  EXPECT_EQ(inputs_text(schedule, forward(4)), "0UPDATE0");
  EXPECT_EQ(inputs_text(two_windows(), forward(4)), "");
}

}  // namespace
}  // namespace sluice
