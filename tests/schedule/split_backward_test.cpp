#include "sluice/schedule/transforms/split_backward.h"

#include <gtest/gtest.h>

#include <string>

#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/validate.h"

namespace sluice {
namespace {

TEST(SplitBackwardTest, EveryFullBackwardBecomesItsTwoParts) {
  EXPECT_EQ(split_backward(read_schedule("0F0,0F1,0B0,0B1\n")).program_text(0),
            "0F0,0F1,0I0,0W0,0I1,0W1");
}

TEST(SplitBackwardTest, WeightGradientsOfAGroupFollowIt) {
  EXPECT_EQ(split_backward(read_schedule("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n")).program_text(0),
            "0F0,(0F1;0I0)OVERLAP_F_B,0W0,0I1,0W1");
  EXPECT_EQ(split_backward(read_schedule("0F0,(0B0;0F1)OVERLAP_F_B,0B1\n")).program_text(0),
            "0F0,(0I0;0F1)OVERLAP_F_B,0W0,0I1,0W1");
}

TEST(SplitBackwardTest, FusingTakesOnlyWhatStandsSideBySide) {
  EXPECT_EQ(fuse_backward(read_schedule("0F0,0F1,0I0,0W0,0I1,0F2,0W1,0I2,0W2\n")).program_text(0),
            "0F0,0F1,0B0,0I1,0F2,0W1,0B2");
  EXPECT_EQ(fuse_backward(read_schedule("0F0,0I0,(0W0;0F1)OVERLAP_F_B,0B1\n")).program_text(0),
            "0F0,0I0,(0W0;0F1)OVERLAP_F_B,0B1");
}

TEST(SplitBackwardTest, PulledWeightGradientsFollowTheirInputGradients) {
  EXPECT_EQ(
      pull_weight_gradients(read_schedule("0F0,0F1,0I0,0I1,0F2,0W0,0W1,0I2,0W2\n")).program_text(0),
      "0F0,0F1,0I0,0W0,0I1,0W1,0F2,0I2,0W2");
  EXPECT_EQ(pull_weight_gradients(read_schedule("0F0,(0I0;0F1)OVERLAP_F_B,0I1,0W0,0W1\n"))
                .program_text(0),
            "0F0,(0I0;0F1)OVERLAP_F_B,0W0,0I1,0W1");
  for (const Generator* generator : all_generators()) {
    if (generator->knobs.block) continue;
    GeneratorOptions options;
    options.devices = 4;
    options.microbatches = 8;
    if (generator->knobs.memory_cap) options.memory_cap = 7;
    const Schedule schedule = generate_schedule(*generator, options);
    const Schedule fused = fuse_backward(pull_weight_gradients(schedule));
    EXPECT_TRUE(validate(fused).valid()) << generator->name;
    // Only what stands in a group is still split.
    for (const Program& program : fused.programs)
      for (std::size_t i = 0; i < program.size(); ++i)
        if (program[i].kind == OpKind::I) {
          EXPECT_TRUE(program[i].joined || group_end(program, i) > i + 1) << generator->name;
        }
  }
}

TEST(SplitBackwardTest, SplitSchedulesAreValidAndFuseAgain) {
  for (const std::string name : {"gpipe", "1f1b", "interleaved-1f1b", "dualpipe-v", "dualpipe"}) {
    GeneratorOptions options;
    options.devices = 4;
    options.microbatches = 8;
    const Schedule schedule = generate_schedule(name, options);
    const Schedule split = split_backward(schedule);
    EXPECT_TRUE(validate(split).valid()) << name;
    EXPECT_TRUE(validate(fuse_backward(split)).valid()) << name;
    if (name.find("dual") == std::string::npos) {
      EXPECT_EQ(fuse_backward(split), schedule) << name;
    }
  }
}

}  // namespace
}  // namespace sluice
