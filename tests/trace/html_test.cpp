#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "sluice/trace/render.h"
#include "trace/sample_timeline.h"

namespace sluice {
namespace {

nlohmann::json data_of(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = html.find(open) + open.size();
  return nlohmann::json::parse(html.substr(begin, html.find("</script>", begin) - begin));
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    ++n;
  return n;
}

TEST(Html, TheDataIsTheTimeline) {
  const Timeline timeline = testing::sliced_sample();
  const nlohmann::json data = data_of(render_html(timeline));
  EXPECT_EQ(data["name"], "seq1f1b");
  EXPECT_EQ(data["numSlices"], 2);
  ASSERT_EQ(data["devices"].size(), 2u);
  for (std::size_t d = 0; d < 2; ++d) {
    const auto& device = data["devices"][d];
    const auto& spans = timeline.devices[d].spans;
    ASSERT_EQ(device["times"].size(), 2 * spans.size());
    for (std::size_t i = 0; i < spans.size(); ++i) {
      EXPECT_EQ(device["times"][2 * i], spans[i].start);
      EXPECT_EQ(device["times"][2 * i + 1], spans[i].end);
      EXPECT_EQ(device["stages"][i], spans[i].op.stage);
      EXPECT_EQ(device["microbatches"][i], spans[i].op.microbatch);
      EXPECT_EQ(device["slices"][i], spans[i].op.slice);
      const auto kind = static_cast<std::size_t>(device["kinds"].get<std::string>()[i] - '0');
      EXPECT_EQ(data["kinds"][kind]["name"], std::string(kind_name(spans[i].op.kind)));
    }
    EXPECT_EQ(device["peak"], timeline.devices[d].peak);
  }
  EXPECT_EQ(data["messages"].size(), 8 * timeline.messages.size());
  EXPECT_EQ(data["note"], "");
}

TEST(Html, NoNameCanBreakOutOfItsPlace) {
  Timeline timeline = testing::tiny_sample();
  const std::string evil = "</script><script>alert(1)</script><!-- {{script}} </title>";
  timeline.name = timeline.caption = evil;
  const std::string html = render_html(timeline);
  const std::string plain = render_html(testing::tiny_sample());
  EXPECT_EQ(count(html, "<script"), count(plain, "<script"));
  EXPECT_EQ(count(html, "</script"), count(plain, "</script"));
  EXPECT_EQ(count(html, "<!--"), count(plain, "<!--"));
  EXPECT_EQ(count(html, "</title"), 1u);
  EXPECT_EQ(data_of(html)["name"], evil);
}

TEST(Html, ThePageNeedsNoNetwork) {
  const std::string html = render_html(testing::v_half_sample());
  for (const char* what : {"http:", "https:", "src=", "href=", "@import", "url(", "fetch("})
    EXPECT_EQ(count(html, what), 0u) << what;
}

TEST(Html, ThePlaceholdersAreAllFilled) {
  const std::string html = render_html(testing::tiny_sample());
  for (const char* what : {"{{title}}", "{{style}}", "{{data}}", "{{script}}"})
    EXPECT_EQ(count(html, what), 0u) << what;
  EXPECT_EQ(count(html, "<title>1f1b - schedule</title>"), 1u);
}

TEST(Html, MoreOpsThanABrowserHoldsAreCutInTimeAndThePageSaysSo) {
  Timeline timeline = testing::tiny_sample();
  auto& spans = timeline.devices[0].spans;
  while (spans.size() < 1'000'100) {
    Span span = spans.back();
    span.start = span.end;
    span.end += 1;
    spans.push_back(span);
  }
  timeline.makespan = spans.back().end;
  const nlohmann::json data = data_of(render_html(timeline));
  const std::size_t shown =
      data["devices"][0]["stages"].size() + data["devices"][1]["stages"].size();
  EXPECT_LE(shown, 1'000'000u);
  EXPECT_GT(shown, 999'000u);
  const auto note = data["note"].get<std::string>();
  EXPECT_NE(note.find("This run has 1000104 ops"), std::string::npos) << note;
  EXPECT_NE(note.find("messages are left out"), std::string::npos) << note;
}

TEST(Html, AnEmptyTimelineIsAPageToo) {
  EXPECT_EQ(data_of(render_html(Timeline{}))["devices"].size(), 0u);
}

}  // namespace
}  // namespace sluice
