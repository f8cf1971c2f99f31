// Lowering: PyTorch's golden rows, where messages are placed, and the way back.
#include "sluice/schedule/transforms/communication.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "sluice/base/error.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/text_format.h"

namespace sluice {
namespace {

std::string torch_file(const std::string& name) {
  const std::string path = std::string(SLUICE_TEST_DATA) + "/torch/" + name + ".csv";
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Without UNSHARD, RESHARD and REDUCE_GRAD: lower_for_torch() adds those.
Schedule without_sharding(Schedule schedule) {
  for (Program& program : schedule.programs)
    std::erase_if(program, [](const Op& op) { return !has_microbatch(op.kind); });
  return schedule;
}

std::string lowered_text(std::string_view text) {
  const Lowered lowered = add_communication(read_schedule(text));
  EXPECT_TRUE(lowered.complete);
  return write_schedule(lowered.schedule, TextFlavour::torch);
}

TEST(CommunicationTest, LoweringIsPyTorchs) {
  for (const std::string name : {"one_f_one_b_p2_m2", "interleaved_p2_v2_m2"}) {
    const Schedule golden = read_schedule(torch_file(name + "_lowered"));
    EXPECT_EQ(lowered_text(torch_file(name)),
              write_schedule(without_sharding(golden), TextFlavour::torch));
  }
}

TEST(CommunicationTest, LoweringAroundShardingOpsIsPyTorchsToTheLetter) {
  for (const std::string name : {"one_f_one_b_p2_m2", "interleaved_p2_v2_m2"}) {
    const std::string golden = torch_file(name + "_lowered");
    const Schedule stripped = strip_communication(read_schedule(golden));
    EXPECT_EQ(write_schedule(add_communication(stripped).schedule, TextFlavour::torch), golden);
  }
}

TEST(CommunicationTest, StripUndoesLoweringForEveryGenerator) {
  int schedules = 0;
  for (const Generator* generator : all_generators()) {
    if (generator->knobs.block) continue;
    for (const int slices : {1, 3}) {
      if (slices > 1 && !generator->knobs.slices) continue;
      GeneratorOptions options;
      options.devices = 4;
      options.microbatches = 8;
      options.slices = slices;
      if (generator->knobs.memory_cap) options.memory_cap = 8;
      const Schedule schedule = generate_schedule(*generator, options);
      const Lowered lowered = add_communication(schedule);
      EXPECT_TRUE(lowered.complete) << generator->name;
      EXPECT_TRUE(lowered.schedule.has_communication()) << generator->name;
      EXPECT_EQ(strip_communication(lowered.schedule), schedule) << generator->name;
      ++schedules;
    }
  }
  EXPECT_GT(schedules, 25);
}

TEST(CommunicationTest, SendStandsAfterItsProducerAndReceiveAtTheSamePoint) {
  EXPECT_EQ(lowered_text("0F0,0I0,0W0\n1F0,1I0,1W0\n"),
            "0F0,0SEND_F0,0RECV_B0,0I0,0W0\n"
            "1RECV_F0,1F0,1I0,1SEND_B0,1W0\n");
}

TEST(CommunicationTest, TheTurnOfAVHandsOverLocally) {
  EXPECT_EQ(lowered_text("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"),
            "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0RECV_B0,0B0\n"
            "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1B0,1SEND_B0\n");
}

TEST(CommunicationTest, OneDeviceSendsNothing) {
  EXPECT_EQ(lowered_text("0F0,1F0,1B0,0B0\n"), "0F0,1F0,1B0,0B0\n");
}

TEST(CommunicationTest, AGroupIsPlacedWholeAndItsMessagesAfterIt) {
  EXPECT_EQ(lowered_text("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n"),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,(1F1;1B0)OVERLAP_F_B,1SEND_B0,1B1,1SEND_B1\n");
}

TEST(CommunicationTest, MessagesOfSlicesAndPipesCarryTheirNumbers) {
  const Lowered lowered =
      add_communication(read_schedule("0F0.0,0F0.1,0B0.1,0B0.0\n"
                                      "1F0.0,1F0.1,1B0.1,1B0.0\n"));
  EXPECT_EQ(lowered.schedule.program_text(1),
            "1RECV_F0.0,1F0.0,1RECV_F0.1,1F0.1,1B0.1,1SEND_B0.1,1B0.0,1SEND_B0.0");
  const Lowered mirrored =
      add_communication(read_schedule("0F0@0,1F1@1,1B1@1,0B0@0\n"
                                      "0F1@1,1F0@0,1B0@0,0B1@1\n"));
  EXPECT_EQ(mirrored.schedule.program_text(0),
            "0F0@0,0SEND_F0@0,1RECV_F1@1,1F1@1,1B1@1,1SEND_B1@1,0RECV_B0@0,0B0@0");
}

TEST(CommunicationTest, StopsBeforeTheFirstOpThatWaitsForEver) {
  const Lowered lowered = add_communication(read_schedule("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"));
  EXPECT_FALSE(lowered.complete);
  EXPECT_EQ(lowered.placed, (std::vector<std::size_t>{1, 1}));
}

TEST(CommunicationTest, RefusesToLowerTwice) {
  const Schedule lowered = add_communication(read_schedule("0F0,0B0\n1F0,1B0\n")).schedule;
  EXPECT_THROW(add_communication(lowered), InternalError);
}

TEST(CommunicationTest, SendAndReceiveNameBothEnds) {
  const Schedule schedule = read_schedule("0F0,0B0\n1F0,1B0\n");
  const auto forward = send_recv_of(make_op(OpKind::F, 0, 0), schedule);
  ASSERT_TRUE(forward);
  EXPECT_EQ(forward->send, make_op(OpKind::SendF, 0, 0));
  EXPECT_EQ(forward->recv, make_op(OpKind::RecvF, 1, 0));
  EXPECT_EQ(forward->from, 0);
  EXPECT_EQ(forward->to, 1);
  const auto backward = send_recv_of(make_op(OpKind::I, 1, 0), schedule);
  ASSERT_TRUE(backward);
  EXPECT_EQ(backward->send, make_op(OpKind::SendB, 1, 0));
  EXPECT_EQ(backward->recv, make_op(OpKind::RecvB, 0, 0));
  EXPECT_FALSE(send_recv_of(make_op(OpKind::F, 1, 0), schedule));
  EXPECT_FALSE(send_recv_of(make_op(OpKind::B, 0, 0), schedule));
  EXPECT_FALSE(send_recv_of(make_op(OpKind::W, 1, 0), schedule));
}

}  // namespace
}  // namespace sluice
