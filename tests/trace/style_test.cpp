#include "sluice/trace/style.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

Op op_of(int stage, int pipe) {
  Op op;
  op.stage = stage;
  op.pipe = static_cast<std::uint16_t>(pipe) & 0x7ff;
  return op;
}

TEST(Style, ChunksOfADeviceHaveShadesInOrder) {
  Timeline timeline;
  timeline.num_stages = 12;
  timeline.num_stages_per_device = 3;
  EXPECT_EQ(num_shades(timeline), 3);
  EXPECT_EQ(shade_of(timeline, op_of(0, 0)), 0);
  EXPECT_EQ(shade_of(timeline, op_of(3, 0)), 0);
  EXPECT_EQ(shade_of(timeline, op_of(4, 0)), 1);
  EXPECT_EQ(shade_of(timeline, op_of(11, 0)), 2);
  EXPECT_EQ(shade_words(timeline, 2), "chunk 2");
}

TEST(Style, PipesOfAMirroredPlacementHaveShades) {
  Timeline timeline;
  timeline.num_stages = 4;
  timeline.num_stages_per_device = 2;
  timeline.num_pipes = 2;
  EXPECT_EQ(num_shades(timeline), 2);
  EXPECT_EQ(shade_of(timeline, op_of(3, 0)), 0);
  EXPECT_EQ(shade_of(timeline, op_of(0, 1)), 1);
  EXPECT_EQ(shade_words(timeline, 1), "pipe 1");
}

TEST(Style, NumbersAreShort) {
  EXPECT_EQ(tidy(0), "0");
  EXPECT_EQ(tidy(1.0 / 3), "0.3333");
  EXPECT_EQ(tidy(1725), "1725");
  EXPECT_EQ(tidy(1234567.8), "1234568");
  EXPECT_EQ(tidy(-2.5), "-2.5");
  EXPECT_EQ(percent(0.0943), "9.4%");
}

TEST(Style, StepsOfAxesAreOneTwoFive) {
  EXPECT_EQ(nice_step(1), 1);
  EXPECT_EQ(nice_step(1.1), 2);
  EXPECT_EQ(nice_step(3), 5);
  EXPECT_EQ(nice_step(51), 100);
  EXPECT_DOUBLE_EQ(nice_step(0.03), 0.05);
  EXPECT_EQ(nice_step(0), 1);
}

TEST(Style, IdleShareIsOfTheMakespan) {
  Timeline timeline;
  timeline.devices.resize(2);
  EXPECT_EQ(idle_share(timeline, 0), 0);
  timeline.makespan = 12;
  timeline.devices[0].spans = {{Op{}, 2, 4}, {Op{}, 5, 6}};
  timeline.devices[0].busy = 3;
  EXPECT_DOUBLE_EQ(idle_share(timeline, 0), 0.75);
  // Of two runs in one picture, each has the makespan of its own devices.
  Timeline both;
  timeline.makespan = 6;
  add_run(both, "measured", timeline);
  timeline.devices[1].spans = {{Op{}, 0, 12}};
  timeline.makespan = 12;
  add_run(both, "predicted", timeline);
  EXPECT_DOUBLE_EQ(idle_share(both, 0), 0.5);
  EXPECT_DOUBLE_EQ(idle_share(both, 2), 0.75);
}

TEST(Style, TextIsReadableOnEveryColour) {
  EXPECT_EQ(readable_on(kWhite), kInk);
  EXPECT_EQ(readable_on(kind_colour(OpKind::F, 0, 2)), kWhite);
  EXPECT_EQ(readable_on(kind_colour(OpKind::F, 1, 2)), kInk);
}

}  // namespace
}  // namespace sluice
