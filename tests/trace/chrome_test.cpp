#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/trace/render.h"
#include "trace/sample_timeline.h"
#include "trace/text_golden.h"

namespace sluice {
namespace {

using Track = std::pair<int, int>;  // pid, tid

std::vector<nlohmann::json> events_of(const Timeline& timeline, const std::string& phase) {
  std::vector<nlohmann::json> events;
  const auto trace = nlohmann::json::parse(render_chrome(timeline));
  for (const auto& event : trace["traceEvents"])
    if (event["ph"] == phase) events.push_back(event);
  return events;
}

std::map<Track, std::string> track_names(const Timeline& timeline) {
  std::map<Track, std::string> names;
  for (const auto& event : events_of(timeline, "M"))
    if (event["name"] == "thread_name") names[{event["pid"], event["tid"]}] = event["args"]["name"];
  return names;
}

void expect_no_overlap(const Timeline& timeline) {
  std::map<Track, std::vector<std::pair<double, double>>> slices;
  for (const auto& event : events_of(timeline, "X"))
    slices[{event["pid"], event["tid"]}].push_back({event["ts"], event["dur"]});
  for (auto& [track, list] : slices) {
    std::sort(list.begin(), list.end());
    for (std::size_t i = 1; i < list.size(); ++i)
      EXPECT_LE(list[i - 1].first + list[i - 1].second, list[i].first + 1e-6)
          << "device " << track.first << " track " << track.second;
  }
}

TEST(Chrome, SmallTraceIsAsReviewed) {
  testing::expect_golden(render_chrome(testing::tiny_sample()), "tiny.chrome.json");
}

TEST(Chrome, SlicesOfATrackNeverOverlap) {
  expect_no_overlap(testing::tiny_sample());
  expect_no_overlap(testing::v_half_sample());
  expect_no_overlap(testing::joined_sample());
}

TEST(Chrome, OpsThatRunAtOnceGetTracksOfTheirOwn) {
  const auto names = track_names(testing::joined_sample());
  EXPECT_EQ(names.at({0, 1}), "compute");
  EXPECT_EQ(names.at({1, 1}), "compute 1");
  EXPECT_EQ(names.at({1, 2}), "compute 2");
}

TEST(Chrome, MessagesThatOverlapAreSplitOverTracks) {
  Timeline timeline = testing::tiny_sample();
  for (Message& message : timeline.messages)
    message.end = message.start + 5;
  expect_no_overlap(timeline);
  std::set<std::string> names;
  for (const auto& [track, name] : track_names(timeline))
    names.insert(name);
  EXPECT_TRUE(names.count("send 2") == 1 && names.count("receive 2") == 1);
}

TEST(Chrome, EveryMessageIsAnArrowFromItsSendToItsReceive) {
  const Timeline timeline = testing::tiny_sample();
  const auto names = track_names(timeline);
  std::map<int, nlohmann::json> starts;
  for (const auto& event : events_of(timeline, "s"))
    starts[event["id"]] = event;
  const auto finishes = events_of(timeline, "f");
  EXPECT_EQ(finishes.size(), timeline.messages.size());
  for (const auto& finish : finishes) {
    const auto& start = starts.at(finish["id"]);
    const Message& message = timeline.messages[finish["id"].get<std::size_t>()];
    EXPECT_EQ(start["pid"], message.from);
    EXPECT_EQ(finish["pid"], message.to);
    EXPECT_EQ(finish["bp"], "e");
    EXPECT_EQ(names.at({start["pid"], start["tid"]}).substr(0, 4), "send");
    EXPECT_EQ(names.at({finish["pid"], finish["tid"]}).substr(0, 7), "receive");
  }
}

TEST(Chrome, EveryRunIsAProcessOfItsOwn) {
  Timeline both = testing::tiny_sample();
  both.devices.clear();
  both.messages.clear();
  add_run(both, "measured", testing::tiny_sample());
  add_run(both, "predicted", testing::tiny_sample());
  std::vector<std::string> processes;
  for (const auto& event : events_of(both, "M"))
    if (event["name"] == "process_name") processes.push_back(event["args"]["name"]);
  EXPECT_EQ(processes, (std::vector<std::string>{"measured", "predicted"}));
  expect_no_overlap(both);
  const auto names = track_names(both);
  std::set<std::string> predicted;
  for (const auto& [track, name] : names)
    if (track.first == 1) predicted.insert(name);
  EXPECT_TRUE(predicted.count("device 0 compute") && predicted.count("device 1 compute"));
  std::map<int, int> counters;
  for (const auto& event : events_of(both, "C"))
    ++counters[event["pid"]];
  EXPECT_EQ(counters[0], counters[1]);
  for (const auto& event : events_of(both, "s"))
    EXPECT_EQ(names.at({event["pid"], event["tid"]}).find("send"), 9u);
}

TEST(Chrome, TimesAreMicroseconds) {
  Timeline timeline = testing::tiny_sample();
  EXPECT_EQ(events_of(timeline, "X")[0]["dur"], 1000);
  timeline.seconds = true;
  EXPECT_EQ(events_of(timeline, "X")[0]["dur"], 1'000'000);
}

TEST(Chrome, ATraceTooLargeToOpenIsRefused) {
  Timeline timeline = testing::tiny_sample();
  timeline.devices[0].spans.resize(1'000'001);
  EXPECT_THROW(render_chrome(timeline), UserError);
}

TEST(Chrome, NamesAreEscaped) {
  Timeline timeline = testing::tiny_sample();
  timeline.name = "a\"b\\c\n";
  EXPECT_EQ(nlohmann::json::parse(render_chrome(timeline))["otherData"]["schedule"], timeline.name);
}

}  // namespace
}  // namespace sluice
