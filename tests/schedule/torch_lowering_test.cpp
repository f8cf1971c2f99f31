// The lowered form for PyTorch: letter for letter what PyTorch's own lowering gives, and sound for
// every generator.
#include "sluice/schedule/transforms/torch_lowering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/transforms/communication.h"
#include "sluice/schedule/transforms/reductions.h"
#include "sluice/schedule/validate.h"
#include "support/golden.h"

namespace sluice {
namespace {

std::string torch_file(const std::string& name) {
  return test::read_text(std::string(SLUICE_TEST_DATA) + "/torch/" + name + ".csv");
}

// PyTorch frees several stages at once in no fixed order: here in the order of their numbers.
std::string in_fixed_order(Schedule schedule) {
  for (Program& program : schedule.programs)
    for (auto first = program.begin(); first != program.end();) {
      const auto end = std::find_if(first, program.end(),
                                    [](const Op& op) { return op.kind != OpKind::Reshard; });
      std::sort(first, end, [](const Op& a, const Op& b) { return a.stage < b.stage; });
      first = end == program.end() ? end : end + 1;
    }
  return write_schedule(schedule, TextFlavour::torch);
}

std::string lowered_text(const char* text) {
  return write_schedule(lower_for_torch(read_schedule(text)), TextFlavour::torch);
}

// Its one-pipe, one-slice schedules are PyTorch's to run.
std::vector<Schedule> torch_schedules() {
  std::vector<Schedule> out;
  for (const Generator* generator : all_generators()) {
    if (generator->knobs.block || generator->knobs.windows) continue;
    GeneratorOptions options;
    options.devices = 4;
    options.microbatches = 8;
    if (generator->knobs.stages_per_device) options.stages_per_device = 4;
    if (generator->knobs.memory_cap) options.memory_cap = 8;
    Schedule schedule = generate_schedule(*generator, options);
    if (schedule.num_pipes() == 1 && schedule.num_slices == 1) out.push_back(std::move(schedule));
  }
  return out;
}

TEST(TorchLowering, IsPyTorchsToTheLetter) {
  for (const std::string name : {"one_f_one_b_p2_m2", "interleaved_p2_v2_m2", "looped_bfs_p2_v4_m2",
                                 "zbv_zero_bubble_p2_m4", "dual_pipe_v_p2_m4", "groups_p1_v4_m2"})
    EXPECT_EQ(in_fixed_order(lower_for_torch(read_schedule(torch_file(name)))),
              in_fixed_order(read_schedule(torch_file(name + "_lowered"))))
        << name;
}

TEST(TorchLowering, OneDeviceHasNoMessagesAndStillReduces) {
  EXPECT_EQ(lowered_text("0F0,0F1,0B0,0B1\n"), "0UNSHARD,0F0,0F1,0B0,0B1,0REDUCE_GRAD,0RESHARD\n");
}

TEST(TorchLowering, KeepsTheMessagesOfALoweredSchedule) {
  EXPECT_EQ(lowered_text("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
            "1RECV_F0,1UNSHARD,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n");
}

TEST(TorchLowering, IsNotAddedTwice) {
  for (const Schedule& schedule : torch_schedules()) {
    const Schedule once = lower_for_torch(schedule);
    EXPECT_EQ(lower_for_torch(once), once) << schedule.name;
    EXPECT_EQ(lower_for_torch(add_reductions(schedule)), once) << schedule.name;
  }
}

TEST(TorchLowering, EveryScheduleStaysValidAndIsOtherwiseTheSame) {
  for (const Schedule& schedule : torch_schedules()) {
    SCOPED_TRACE(schedule.name);
    Schedule lowered = lower_for_torch(schedule);
    const Validation validation = validate(lowered);
    EXPECT_TRUE(validation.valid()) << validation.problems.front().line();
    Schedule read = read_schedule(write_schedule(lowered, TextFlavour::torch));
    read.name = lowered.name;
    EXPECT_EQ(read, lowered);
    for (Program& program : lowered.programs)
      std::erase_if(program, [](const Op& op) { return !is_compute(op.kind); });
    EXPECT_EQ(lowered, schedule);
  }
}

// What PyTorch asserts while it runs: no compute on a sharded stage, nothing gathered twice or
// freed twice; and one division of each stage's gradients, behind the last of them.
TEST(TorchLowering, EveryStageIsGatheredWhereItComputesAndReducedOnce) {
  int freed_early = 0;
  for (const Schedule& schedule : torch_schedules()) {
    const Schedule lowered = lower_for_torch(schedule);
    for (int d = 0; d < lowered.num_devices(); ++d) {
      std::set<int> held;
      std::map<int, int> gradients, reductions;
      for (const Op& op : lowered.programs[static_cast<std::size_t>(d)]) {
        SCOPED_TRACE(schedule.name + " " + lowered.text(op));
        if (op.kind == OpKind::Unshard) {
          ASSERT_TRUE(held.insert(op.stage).second);
        }
        if (op.kind == OpKind::Reshard) {
          ASSERT_EQ(held.erase(op.stage), 1u);
          freed_early += reductions[op.stage] == 0;
        }
        if (is_compute(op.kind)) {
          ASSERT_TRUE(held.contains(op.stage));
        }
        ASSERT_LE(held.size(), 3u);
        gradients[op.stage] += gives_weight_gradient(op.kind);
        if (op.kind == OpKind::ReduceGrad) {
          ASSERT_EQ(gradients[op.stage], schedule.num_microbatches);
          ASSERT_EQ(++reductions[op.stage], 1);
        }
      }
      EXPECT_TRUE(held.empty());
      for (const int stage : lowered.placement.stages_of(d))
        EXPECT_EQ(reductions[stage], 1) << schedule.name << " stage " << stage;
    }
  }
  EXPECT_GT(freed_early, 0);
}

}  // namespace
}  // namespace sluice
