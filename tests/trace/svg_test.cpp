#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/trace/render.h"
#include "trace/sample_timeline.h"
#include "trace/text_golden.h"

namespace sluice {
namespace {

using testing::expect_golden;

// Every element is closed in order, and no bare '&' is left. Enough of XML for what we write.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const std::size_t end = xml.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = xml.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    ASSERT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty()) << tag;
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  for (std::size_t at = xml.find('&'); at != std::string::npos; at = xml.find('&', at + 1))
    EXPECT_LT(xml.find(';', at) - at, 7u);
}

TEST(Svg, SmallPictureIsAsReviewed) {
  const std::string svg = render_svg(testing::tiny_sample());
  expect_well_formed(svg);
  expect_golden(svg, "tiny.svg");
}

TEST(Svg, EverySampleIsWellFormed) {
  for (const Timeline& timeline :
       {testing::v_half_sample(), testing::sliced_sample(), testing::joined_sample(),
        testing::one_f_one_b_sample(1, 1), testing::one_f_one_b_sample(70, 3), Timeline{}})
    expect_well_formed(render_svg(timeline));
}

TEST(Svg, RunsStandUnderEachOtherOnOneTimeAxis) {
  Timeline both = testing::tiny_sample();
  const double alone = both.makespan;
  both.devices.clear();
  both.messages.clear();
  add_run(both, "measured", testing::tiny_sample());
  Timeline longer = testing::tiny_sample();
  longer.makespan = 2 * alone;
  add_run(both, "predicted", longer);
  EXPECT_EQ(both.makespan, 2 * alone);
  const std::string svg = render_svg(both);
  expect_well_formed(svg);
  EXPECT_LT(svg.find("measured 1"), svg.find("predicted 0"));
  EXPECT_NE(svg.find("predicted 1"), std::string::npos);
  EXPECT_EQ(svg.find("device 0"), std::string::npos);
}

// One op that takes next to no time must not cost the others their numbers.
TEST(Svg, AShortOpGoesWithoutANumber) {
  Timeline timeline = testing::v_half_sample();
  const std::string before = render_svg(timeline);
  Span& span = timeline.devices[0].spans[0];
  span.start = span.end - 1e-4;
  const std::string after = render_svg(timeline);
  const auto labels = [](const std::string& svg) {
    std::size_t n = 0;
    for (std::size_t at = svg.find("<title>"); at != std::string::npos;
         at = svg.find("<title>", at + 1))
      ++n;
    return n;
  };
  EXPECT_EQ(labels(after) + 1, labels(before));
}

TEST(Svg, NamesAreEscaped) {
  Timeline timeline = testing::tiny_sample();
  timeline.name = "<script>\"a\" & 'b'\x01</script>";
  timeline.caption = "</text><a>";
  const std::string svg = render_svg(timeline);
  expect_well_formed(svg);
  EXPECT_EQ(svg.find("<script>"), std::string::npos);
  EXPECT_EQ(svg.find("<a>"), std::string::npos);
}

TEST(Svg, OpsThatRunAsOneAreOutlined) {
  EXPECT_NE(render_svg(testing::joined_sample()).find("stroke-width=\"1.6\""), std::string::npos);
  EXPECT_EQ(render_svg(testing::v_half_sample()).find("stroke-width=\"1.6\""), std::string::npos);
}

TEST(Svg, TooManyOpsBecomeAveragesAndTheCaptionSaysSo) {
  const std::string svg = render_svg(testing::one_f_one_b_sample(64, 2000));
  expect_well_formed(svg);
  EXPECT_NE(svg.find("colours are averages"), std::string::npos);
  EXPECT_LT(svg.size(), 6'000'000u);
}

TEST(Svg, TooManyDevicesAreCutAndTheCaptionSaysSo) {
  const std::string svg = render_svg(testing::one_f_one_b_sample(1100, 2));
  EXPECT_NE(svg.find("(first 1024 of 1100 devices)"), std::string::npos);
}

TEST(Svg, SecondsAndBytesHaveUnits) {
  Timeline timeline = testing::tiny_sample();
  timeline.seconds = timeline.bytes = true;
  for (DeviceTimeline& device : timeline.devices)
    device.peak = 3.5 * 1024 * 1024 * 1024;
  const std::string svg = render_svg(timeline);
  EXPECT_NE(svg.find("time (s)"), std::string::npos);
  EXPECT_NE(svg.find("peak 3.5 GiB"), std::string::npos);
}

TEST(ComparisonSvg, SmallPictureIsAsReviewed) {
  const std::string svg = render_comparison_svg("p = 4 & m = 8", "1f1b",
                                                {{"1f1b", 1, 1},
                                                 {"zb-h1", .9, 1},
                                                 {"zb-1p", .9, 1},
                                                 {"v-half", .92, .6},
                                                 {"zb-2p", .8, 2},
                                                 {"gpipe", 1, 8}});
  expect_well_formed(svg);
  expect_golden(svg, "comparison.svg");
}

TEST(ComparisonSvg, SchedulesAtOnePlaceShareALabelAndFarOnesStandAtTheEdge) {
  const std::string svg =
      render_comparison_svg("t", "a", {{"a", 1, 1}, {"b", 1, 1}, {"far", 1.2, 12.5}});
  EXPECT_NE(svg.find(">a, b<"), std::string::npos);
  EXPECT_NE(svg.find(">far (12.5x)<"), std::string::npos);
}

TEST(ComparisonSvg, OnlyWhatNothingBeatsIsFilled) {
  const std::string svg =
      render_comparison_svg("t", "1f1b", {{"cheap", 1.3, .5}, {"fast", 1, 1}, {"beaten", 1.3, 1}});
  std::size_t hollow = 0;
  for (std::size_t at = svg.find("fill=\"#ffffff\" stroke"); at != std::string::npos;
       at = svg.find("fill=\"#ffffff\" stroke", at + 1))
    ++hollow;
  EXPECT_EQ(hollow, 1u);
}

TEST(ComparisonSvg, NoPointsGiveAnEmptyPlane) {
  expect_well_formed(render_comparison_svg("nothing", "1f1b", {}));
}

}  // namespace
}  // namespace sluice
