// sluice compare as users meet it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "support/run_json.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::expect_error;
using test::json_of;
using test::Ran;
using test::run_sluice;
using test::TemporaryFolder;

std::map<std::string, Json> rows_of(const Json& comparison) {
  std::map<std::string, Json> rows;
  for (const Json& row : comparison["schedules"])
    rows[row["name"]] = row;
  return rows;
}

// Each command of the comparison gives its row again.
int check_commands(const Json& comparison) {
  int rows = 0;
  for (const Json& row : comparison["schedules"]) {
    const std::string command = row["command"];
    SCOPED_TRACE(command);
    const Json again = json_of(command.substr(std::string("sluice ").size()));
    EXPECT_EQ(again["span"], row["span"]);
    EXPECT_EQ(again["makespan"], row["makespan"]);
    const double stages = again["stages"].get<double>() / again["devices"].get<double>();
    EXPECT_NEAR(again["max_peak"].get<double>() / stages, row["peak"].get<double>(), 1e-9);
    EXPECT_EQ(again.value("max_peak_bytes", 0.0), row.value("peak_bytes", 0.0));
    ++rows;
  }
  return rows;
}

TEST(Compare, HoldsTheModelFixed) {
  const auto rows = rows_of(json_of("compare --devices 8 --microbatches 16"));
  EXPECT_EQ(rows.at("1f1b")["span"], 69);
  EXPECT_EQ(rows.at("1f1b")["relative_peak"], 1);
  EXPECT_EQ(rows.at("1f1b")["relative_makespan"], 1);
  EXPECT_EQ(rows.at("v-half")["span"], 56.5);
  EXPECT_EQ(rows.at("v-half")["relative_peak"], 0.625);
  EXPECT_EQ(rows.at("zb-v k=4")["bubble"], 0);
  EXPECT_EQ(rows.at("zb-v k=4")["relative_peak"], 0.34375);
  EXPECT_EQ(rows.at("dualpipe")["span"], 54);
}

// Asynchronous schedules, by what one more window takes.
TEST(Compare, SchedulesThatGoOnHaveATableOfTheirOwn) {
  const Json comparison = json_of("compare -d 8 -m 32");
  std::map<std::string, Json> rows;
  for (const Json& row : comparison["asynchronous"])
    rows[row["name"]] = row;
  ASSERT_EQ(rows.size(), 8U);
  for (const char* name : {"amdp A", "amdp R", "amdp T", "async-1f1b", "pp2xdp"}) {
    SCOPED_TRACE(name);
    EXPECT_DOUBLE_EQ(rows.at(name)["window"], 96);
    EXPECT_DOUBLE_EQ(rows.at(name)["steady_utilisation"], 1);
    EXPECT_EQ(rows.at(name)["max_mismatch"], 1);
  }
  EXPECT_NEAR(rows.at("amdp A")["relative_window"].get<double>(), 96.0 / 117, 1e-12);
  EXPECT_EQ(rows.at("amdp A")["weight_copies"], 4);
  EXPECT_EQ(rows.at("amdp T")["weight_copies"], 2);
  EXPECT_EQ(rows.at("async-1f1b")["weight_copies"], 1);
  EXPECT_EQ(rows.at("pp2xdp")["weight_copies"], 4);
  EXPECT_EQ(rows.at("pipedream-2bw")["weight_copies"], 2);
  EXPECT_DOUBLE_EQ(rows.at("amdp A")["mismatch_share"].get<double>(), 7.0 / 32);
  for (const auto& [name, row] : rows) {
    SCOPED_TRACE(name);
    const std::string command = row["command"];
    const Json again = json_of(command.substr(std::string("sluice ").size()));
    EXPECT_DOUBLE_EQ(again["steady_utilisation"], row["steady_utilisation"]);
    EXPECT_EQ(again["max_mismatch"], row["max_mismatch"]);
    EXPECT_EQ(again["max_delay"], row["max_delay"]);
  }
  // Asked for by name, alone.
  EXPECT_EQ(json_of("compare amdp -d 4 -m 8")["schedules"].size(), 0U);
  EXPECT_EQ(json_of("compare amdp -d 4 -m 8")["asynchronous"].size(), 3U);
  expect_error("compare amdp -d 4 -m 8 --format svg", 2, {"--format is svg"});
  expect_error("compare amdp -d 4 -m 7", 2, {"nothing to compare", "a multiple of 4"});
}

// As many windows as it takes: the versions in use grow for more than twice as many as devices.
TEST(Compare, WindowsAreSteady) {
  const Json rows = json_of("compare -d 16 -m 1 pipedream async-1f1b")["asynchronous"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["name"], "async-1f1b");
  EXPECT_EQ(rows[0]["max_mismatch"], 15);
  for (const Json& row : rows) {
    EXPECT_EQ(row["max_delay"], 15);
    EXPECT_EQ(row["window"], 3);
  }
  // Where that is more than is looked at, nothing is called steady.
  const std::string endless = "compare -d 64 -m 1 async-1f1b";
  const Json row = json_of(endless)["asynchronous"][0];
  for (const char* key : {"steady_utilisation", "max_mismatch", "mismatch_share", "max_delay"})
    EXPECT_TRUE(row[key].is_null()) << key;
  EXPECT_NE(run_sluice(endless).out.find("+ async-1f1b is not steady within"), std::string::npos);
  for (const char* key : {"max_mismatch", "mismatch_share", "mismatched_microbatches", "max_delay"})
    for (const auto& [windows, steady] : {std::pair(3, false), {9, true}}) {
      const Json of = json_of(fmt::format("schedule pipedream -d 8 -m 1 --windows {}", windows));
      EXPECT_EQ(of[key].is_null(), !steady) << key << " " << windows;
    }
}

TEST(Compare, TheFasterBorderAndTheAlternativeAreNamed) {
  const Json rows = json_of("compare amdp -d 8 -m 8 --device-times 1,1.2,0.7")["asynchronous"];
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [](const Json& row) { return row["name"] == "amdp A border=2"; });
  ASSERT_NE(found, rows.end());
  EXPECT_NE((*found)["command"].get<std::string>().find("--order A --border 2"), std::string::npos);
  for (const auto& [command, reason] :
       {std::pair("compare -d 8 -m 6",
                  "--microbatches is 6: 4 pipelines of two devices need a "
                  "multiple of 4"),
        {"compare -d 4 -m 4 --contention 1.3,1.2,1.1,1",
         "--contention is that of a pipeline of 4 devices"}}) {
    const Json left_out = json_of(command)["left_out"];
    // clang takes no structured binding into a lambda.
    const std::string why = reason;
    EXPECT_TRUE(std::any_of(left_out.begin(), left_out.end(), [&](const Json& entry) {
      return entry["name"] == "pp2xdp" && entry["reason"] == why;
    })) << left_out.dump();
  }
}

TEST(Compare, WhatIsLeftOutIsExplainedInFlags) {
  const std::string command = "compare 1f1b dualpipe -d 3 -m 6";
  const std::string reason = "--devices is 3: dualpipe needs an even number; dualpipe-v takes any";
  EXPECT_EQ(json_of(command)["left_out"][0]["reason"], reason);
  const std::string text = run_sluice(command).out;
  EXPECT_NE(text.find("  dualpipe: " + reason + "\n"), std::string::npos) << text;
}

// ZB-V has no bubble in its span of 48, but a step takes 51.5: longer than Seq-ZB's 49.75.
TEST(Compare, RanksByMakespan) {
  const Json json = json_of("compare --devices 8 --microbatches 16");
  double last = 0, least = 1e300;
  for (const Json& row : json["schedules"]) {
    const double makespan = row["makespan"], peak = row["peak"];
    EXPECT_GE(makespan, last);
    EXPECT_EQ(row["frontier"].get<bool>(), peak < least * (1 - 1e-12)) << row;
    last = makespan;
    least = std::min(least, peak);
  }
  const std::string text = run_sluice("compare --devices 8 --microbatches 16").out;
  EXPECT_LT(text.find("\nseq-zb k=4 "), text.find("\nzb-v  "));
  EXPECT_NE(text.find("\nranked by makespan; "), std::string::npos) << text;
  EXPECT_NE(text.find("span and bubble presume deferred validation"), std::string::npos) << text;
  EXPECT_NE(run_sluice("compare -d 8 -m 16 --format svg").out.find(">makespan, relative to 1f1b<"),
            std::string::npos);
}

TEST(Compare, TheCommandBesideEachRowGivesThatRow) {
  EXPECT_GT(check_commands(json_of("compare --devices 4 --microbatches 12 --device-times 3,4,2 "
                                   "--comm 0.5 --keep-after-i 0.5 --tokens 64 --slice-sizes 40,24 "
                                   "--contention 1.7,1.3,1.1,1")),
            25);
  EXPECT_EQ(check_commands(json_of("compare 1f1b gis zb-v -d 4 -m 8 --stages-per-device 3")), 4);
  const std::string text = run_sluice("compare 1f1b zb-v --devices 4 --microbatches 8").out;
  EXPECT_NE(text.find("\nthe command for each row:\n"
                      "  zb-v k=4  sluice schedule zb-v -d 4 -m 8 --slices 4 --times 0.5,0.5,0.5\n"
                      "  zb-v      sluice schedule zb-v -d 4 -m 8 --times 0.5,0.5,0.5\n"
                      "  1f1b      sluice schedule 1f1b -d 4 -m 8\n"),
            std::string::npos)
      << text;
}

TEST(Compare, OldNamesOfFlagsStillWork) {
  const std::string request = "compare -d 4 -m 8 ";
  EXPECT_EQ(run_sluice(request + "--times 3,4,2 --memory-cap 3").out,
            run_sluice(request + "--device-times 3,4,2 --device-memory-cap 3").out);
  expect_error(request + "--times 1,2", 2, {"--device-times is '1,2'"});
}

TEST(Compare, OnlyWhatIsNamed) {
  const Json json = json_of("compare v-half ZBVZeroBubble v-half -d 4 -m 8");
  std::vector<std::string> names;
  for (const Json& row : json["schedules"])
    names.push_back(row["name"]);
  EXPECT_EQ(names, (std::vector<std::string>{"zb-v k=4", "v-half k=4", "zb-v", "v-half"}));
  EXPECT_EQ(json["reference"], "1f1b");
  // Relative to 1F1B, which is not shown.
  EXPECT_EQ(rows_of(json).at("zb-v")["relative_peak"], 1);
  expect_error("compare v-half zb-w -d 4 -m 8", 2, {"zb-w", "did you mean 'zb-v'"});
  expect_error("compare block -d 4 -m 8", 2, {"'block' cannot be compared"});
}

TEST(Compare, UnderACapLeavesOutWhatDoesNotFitAndSaysWhy) {
  const Json json = json_of("compare --devices 8 --microbatches 16 --device-memory-cap 4");
  for (const Json& row : json["schedules"])
    EXPECT_LE(row["peak"].get<double>(), 4);
  bool found = false;
  for (const Json& row : json["left_out"])
    found = found || (row["name"] == "1f1b" && row["reason"] == "peak 8 is over the cap 4");
  EXPECT_TRUE(found);
  const Ran svg = run_sluice("compare --devices 4 --microbatches 8 --format svg");
  EXPECT_TRUE(svg.out.starts_with("<svg"));
}

// Three stages of 6, 6 and 4 layers; a layer takes 1 + 1 + 1, the head as long as two.
TEST(Compare, AProfilesLayersAreDealtToEachSchedule) {
  const TemporaryFolder folder;
  const auto stage = [](int layers, int parts) {
    return fmt::format(
        R"({{"F":[{0}],"I":[{0}],"W":[{0}],"after_F":[{1}],"sent_forward":8,"layers":{2}}})", parts,
        parts * 100, layers);
  };
  const std::string costs = folder.write(
      "a b.json",
      fmt::format(R"({{"schema":1,"stages":[{},{},{}]}})", stage(6, 6), stage(6, 6), stage(4, 6)));
  const std::string request = "compare -d 2 -m 8 --costs '" + costs + "'";
  const Json json = json_of(request);
  const auto rows = rows_of(json);
  // 18 parts on two devices: 9 each, 8 microbatches of 27 and the fill and drain of one of them.
  EXPECT_EQ(rows.at("1f1b")["makespan"], 8 * 27 + 27);
  EXPECT_EQ(rows.at("1f1b")["peak_bytes"], 2 * 900);
  EXPECT_EQ(rows.at("zb-v")["bubble"].get<double>() < rows.at("1f1b")["bubble"].get<double>(),
            true);
  EXPECT_GT(check_commands(json), 10);
  // Slices were not measured.
  bool sliced = false;
  for (const Json& left : json["left_out"])
    sliced = sliced || (left["name"] == "zb-v k=4" &&
                        left["reason"].get<std::string>().find("profile the same slices") !=
                            std::string::npos);
  EXPECT_TRUE(sliced) << json["left_out"];
  const Ran text = run_sluice(request);
  EXPECT_NE(text.err.find("has no measured_on"), std::string::npos) << text.err;
  EXPECT_NE(text.out.find("--costs '" + costs + "' --redeal\n"), std::string::npos) << text.out;
  expect_error(request + " --device-times 1,1,1", 2, {" and --device-times are both given"});
  expect_error("compare -d 12 -m 8 zb-v --costs '" + costs + "' --slices 1", 2,
               {"nothing to compare: zb-v: model.layers is 16: too few for 24 stages"});
}

}  // namespace
}  // namespace sluice
