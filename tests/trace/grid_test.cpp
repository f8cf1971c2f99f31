#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "sluice/base/text.h"
#include "sluice/trace/render.h"
#include "trace/sample_timeline.h"
#include "trace/text_golden.h"

namespace sluice {
namespace {

using testing::expect_golden;

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  for (const std::string_view line : split(text, '\n'))
    longest = std::max(longest, line.size());
  return longest;
}

TEST(Grid, AnOpTakesColumnsInProportionToItsTime) {
  expect_golden(render_grid(testing::tiny_sample(), {}), "tiny.grid.txt");
}

TEST(Grid, SecondChunkIsLowerCaseAndBandsBeginAtRoundTimes) {
  expect_golden(render_grid(testing::v_half_sample(), {}), "v_half.grid.txt");
}

TEST(Grid, SlicesAreWrittenAfterADot) {
  expect_golden(render_grid(testing::sliced_sample(), {}), "sliced.grid.txt");
}

TEST(Grid, OpsThatRunAsOneAreTiedWithAPlus) {
  expect_golden(render_grid(testing::joined_sample(), {}), "joined.grid.txt");
}

TEST(Grid, ColourIsOnlyEverEscapeSequences) {
  const Timeline timeline = testing::tiny_sample();
  const std::string plain = render_grid(timeline, {.width = 100, .colour = false});
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  expect_golden(render_grid(timeline, {.width = 100, .colour = true}), "tiny.colour.grid.txt");
}

TEST(Grid, NoLineIsWiderThanAsked) {
  for (const int width : {40, 61, 80, 133})
    EXPECT_LE(longest_line(render_grid(testing::one_f_one_b_sample(5, 30), {.width = width})),
              static_cast<std::size_t>(std::max(width, 60)))
        << width;
}

TEST(Grid, TimesWithoutCommonStepAreScaled) {
  Timeline timeline = testing::v_half_sample();
  for (DeviceTimeline& device : timeline.devices)
    for (Span& span : device.spans) {
      span.start = std::sqrt(span.start);
      span.end = std::sqrt(span.end);
    }
  timeline.makespan = std::sqrt(timeline.makespan);
  timeline.seconds = true;
  expect_golden(render_grid(timeline, {}), "uneven.grid.txt");
}

TEST(Grid, HugeSchedulesShowHeadAndTailAndSayWhatIsMissing) {
  const std::string text = render_grid(testing::one_f_one_b_sample(100, 200), {});
  EXPECT_NE(text.find("... 36 devices left out ..."), std::string::npos);
  EXPECT_NE(text.find("0 left out ...\n"), std::string::npos);
  EXPECT_NE(render_grid(testing::one_f_one_b_sample(100, 200), {.remedy = "look there"})
                .find("0 left out; look there ...\n"),
            std::string::npos);
  EXPECT_NE(text.find("device  0 "), std::string::npos);
  EXPECT_NE(text.find("device 99 "), std::string::npos);
  EXPECT_LT(split(text, '\n').size(), 450u);
}

TEST(Grid, NothingToDrawIsSaid) {
  Timeline timeline;
  timeline.name = "empty";
  EXPECT_EQ(render_grid(timeline, {}), "empty\n(nothing to draw)\n");
  timeline.devices.resize(3);
  EXPECT_EQ(render_grid(timeline, {}), "empty\n(nothing to draw)\n");
}

}  // namespace
}  // namespace sluice
