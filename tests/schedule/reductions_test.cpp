#include "sluice/schedule/transforms/reductions.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/validate.h"

namespace sluice {
namespace {

std::string reduced(const char* text, int device = 0) {
  return add_reductions(read_schedule(text)).program_text(device);
}

TEST(Reductions, StandBehindTheLastWeightGradientOfTheirStage) {
  EXPECT_EQ(reduced("0F0,0F1,0B0,0B1\n"), "0F0,0F1,0B0,0B1,0REDUCE_GRAD");
  EXPECT_EQ(reduced("0F0,1F0,1I0,1W0,0I0,0W0\n"),
            "0F0,1F0,1I0,1W0,1REDUCE_GRAD,0I0,0W0,0REDUCE_GRAD");
  EXPECT_EQ(reduced("0F0,1F0,1I0,0I0,0W0,1W0\n"),
            "0F0,1F0,1I0,0I0,0W0,0REDUCE_GRAD,1W0,1REDUCE_GRAD");
}

TEST(Reductions, FollowAWholeGroupAndTheSendsBehindIt) {
  EXPECT_EQ(reduced("0F0,(0F1;0B0)OVERLAP_F_B,(0B1;1F0)OVERLAP_F_B,1F1,1B0,1B1\n"),
            "0F0,(0F1;0B0)OVERLAP_F_B,(0B1;1F0)OVERLAP_F_B,0REDUCE_GRAD,1F1,1B0,1B1,1REDUCE_GRAD");
  EXPECT_EQ(reduced("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 1),
            "1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD");
}

TEST(Reductions, AreNotAddedTwiceAndComeBeforeTheUpdate) {
  const Schedule once = add_reductions(read_schedule("0F0,0B0,0UPDATE\n"));
  EXPECT_EQ(once.program_text(0), "0F0,0B0,0REDUCE_GRAD,0UPDATE");
  EXPECT_EQ(add_reductions(once), once);
}

// With three devices the middle one holds stage 1 in both pipes.
TEST(Reductions, OneCopyOfAStageInTwoPipesIsReducedOnce) {
  Schedule schedule;
  schedule.placement = Placement::mirrored(3);
  schedule.num_microbatches = 2;
  for (int d = 0; d < 3; ++d) {
    Program& program = schedule.programs.emplace_back();
    for (const auto& [kind, pipe] : {std::pair{OpKind::F, 0}, std::pair{OpKind::F, 1},
                                     std::pair{OpKind::B, 0}, std::pair{OpKind::B, 1}})
      program.push_back(make_op(kind, pipe == 0 ? d : 2 - d, pipe, 0, pipe));
  }
  EXPECT_EQ(add_reductions(schedule).program_text(1), "1F0@0,1F1@1,1B0@0,1B1@1,1REDUCE_GRAD@0");
  EXPECT_EQ(add_reductions(schedule).program_text(0),
            "0F0@0,2F1@1,0B0@0,0REDUCE_GRAD@0,2B1@1,2REDUCE_GRAD@1");
}

// Before or after lowering, for everything that can be generated: valid, and every stage of every
// device reduced once.
TEST(Reductions, KeepEveryScheduleValid) {
  for (const Generator* generator : all_generators()) {
    if (generator->knobs.block) continue;
    SCOPED_TRACE(generator->name);
    GeneratorOptions options;
    options.devices = 4;
    options.microbatches = 8;
    if (generator->knobs.memory_cap) options.memory_cap = 7;
    const Schedule schedule = generate_schedule(*generator, options);
    const Schedule lowered = validate(schedule).lowered;
    for (const Schedule& form : {add_reductions(schedule), add_reductions(lowered)}) {
      const Validation validation = validate(form);
      ASSERT_TRUE(validation.valid()) << validation.problems.front().line();
      for (int d = 0; d < form.num_devices(); ++d) {
        std::vector<int> stages;
        for (const Op& op : validation.lowered.programs[static_cast<std::size_t>(d)])
          if (op.kind == OpKind::ReduceGrad) stages.push_back(op.stage);
        std::sort(stages.begin(), stages.end());
        std::vector<int> held = schedule.placement.stages_of(d);
        std::sort(held.begin(), held.end());
        EXPECT_EQ(stages, held);
      }
    }
    EXPECT_EQ(read_schedule(write_schedule(add_reductions(lowered), TextFlavour::native)),
              add_reductions(lowered));
  }
}

}  // namespace
}  // namespace sluice
