// Slices and the models that price them, as users of schedule, simulate and compare meet them.
#include <fmt/format.h>
#include <gtest/gtest.h>

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

double over_ideal(const Json& result) {
  return result["makespan"].get<double>() / result["ideal"].get<double>();
}

const std::string kLong = "schedule seq1f1b -d 4 -m 16 --slices 4 --model gpt-7b --tokens 131072 ";

TEST(SlicesCommand, BalancedSlicesKeepALongSequenceFlowing) {
  const Json balanced = json_of(kLong + "--slice-sizes balanced");
  EXPECT_EQ(balanced["slice_sizes"], Json({56960, 30464, 23680, 19968}));
  EXPECT_EQ(balanced["model"], "gpt-7b");
  EXPECT_LE(over_ideal(balanced), 1.065);
  EXPECT_EQ(balanced["ideal"].get<double>() > 16 * 3, true);  // I takes longer than F
  // Without --slice-sizes they are even, and the pipeline waits for the last.
  const Json even = json_of(kLong);
  EXPECT_GT(over_ideal(even), 1.5);
  EXPECT_EQ(even["makespan"], json_of(kLong + "--slice-sizes even")["makespan"]);
  const std::string text = run_sluice(kLong + "--slice-sizes balanced").out;
  EXPECT_NE(text.find("of 4 slices (56960, 30464, 23680, 19968 tokens), gpt-7b with\nF,I,W = "
                      "1,2.067,0.2809; makespan "),
            std::string::npos)
      << text.substr(0, 400);
}

TEST(SlicesCommand, TimesStayThoseOfAWholeMicrobatch) {
  const Json timed = json_of(kLong + "--times 1,1,1");
  EXPECT_NEAR(timed["ideal"].get<double>(), 16 * 3, 1e-9);
  EXPECT_NE(timed["makespan"],
            json_of("schedule seq1f1b -d 4 -m 16 --slices 4 --times 1,1,1")["makespan"]);
  // One slice is the whole.
  EXPECT_EQ(json_of("schedule 1f1b -d 4 -m 8 --times 3,4,2")["makespan"],
            json_of("schedule 1f1b -d 4 -m 8 --times 3,4,2 --model gpt-7b")["makespan"]);
}

TEST(SlicesCommand, TheMultipleCanBeChosen) {
  EXPECT_EQ(json_of(kLong + "--slice-sizes balanced --slice-multiple 8192")["slice_sizes"],
            Json({57344, 32768, 24576, 16384}));
  // Halved until no slice is empty: to 16384.
  EXPECT_EQ(json_of(kLong + "--slice-sizes balanced --slice-multiple 131072")["slice_sizes"],
            Json({49152, 32768, 32768, 16384}));
}

TEST(SlicesCommand, AFilesSlicesArePricedByTheModelToo) {
  const TemporaryFolder folder;
  const std::string csv = folder.path() + "/s.csv";
  const std::string balanced = kLong + "--slice-sizes balanced";
  ASSERT_EQ(run_sluice(balanced + " --format csv --out " + csv).code, 0);
  EXPECT_EQ(json_of("simulate " + csv + " --model gpt-7b")["makespan"],
            json_of(balanced)["makespan"]);
  expect_error("simulate " + csv + " --model gpt-7b --tokens 4096", 2,
               {"--tokens is 4096: slice_sizes of ", "s.csv sums to 131072; leave --tokens out"});
  expect_error("simulate " + csv + " --tokens 131072", 2, {"--tokens needs --model or --costs\n"});
  // Without sizes, even ones of --tokens.
  ASSERT_EQ(run_sluice(kLong + " --format csv --out " + csv).code, 0);
  EXPECT_EQ(json_of("simulate " + csv + " --model gpt-7b --tokens 131072")["makespan"],
            json_of(kLong)["makespan"]);
}

TEST(SlicesCommand, CompareBalancesThemWhereItHasAModel) {
  const std::string request =
      "compare 1f1b seq1f1b zb-v zb-1p -d 4 -m 16 --model gpt-7b --tokens 65536";
  const Json json = json_of(request);
  EXPECT_EQ(json["slice_sizes"], Json({25856, 16000, 12800, 10880}));
  int rows = 0;
  for (const Json& row : json["schedules"]) {
    const std::string command = row["command"];
    SCOPED_TRACE(command);
    const Json again = json_of(command.substr(std::string("sluice ").size()));
    EXPECT_EQ(again["makespan"], row["makespan"]);
    ++rows;
  }
  EXPECT_EQ(rows, 5);
  EXPECT_EQ(json["schedules"][4]["name"], "1f1b");
  EXPECT_EQ(json["schedules"][4]["command"],
            "sluice schedule 1f1b -d 4 -m 16 --tokens 65536 --model gpt-7b");
  EXPECT_FALSE(json_of(request + " --slice-sizes even").contains("slice_sizes"));
  EXPECT_FALSE(json_of(request + " --slices 1").contains("slice_sizes"));
  const std::string text = run_sluice(request).out;
  EXPECT_TRUE(text.starts_with("4 devices, 16 microbatches, gpt-7b on 65536 tokens, F,I,W = 1,"))
      << text;
  EXPECT_NE(text.find("\nslices of 25856, 16000, 12800, 10880 tokens\n"), std::string::npos);
}

// Two slices of 1024 tokens whose F + I + W are 30 and 50 s: 40 of the sequence go by tokens and
// 40 by squares.
TEST(SlicesCommand, AProfileOfSlicesIsFitted) {
  const TemporaryFolder folder;
  const auto profile = [](const char* sizes) {
    return fmt::format(
        R"({{"schema":1,{}"stages":[{{"F":[10,20],"I":[15,25],"W":[5,5],"after_F":[8,8]}}]}})",
        sizes);
  };
  const std::string costs = folder.write("c.json", profile(R"("slice_sizes":[1024,1024],)"));
  const std::string request =
      "schedule seq1f1b -d 1 -m 1 --slices 2 --slice-multiple 1 --slice-sizes balanced --costs ";
  const Json json = json_of(request + costs);
  // 40 x + 40 x^2 = 40 at x = 0.618.
  EXPECT_EQ(json["slice_sizes"], Json({1266, 782}));
  EXPECT_NEAR(json["makespan"].get<double>(), 80, 1e-9);
  // F takes 10 x + 20 x^2 of the first x of the sequence.
  const Json other = json_of(
      "schedule seq1f1b -d 1 -m 1 --slice-sizes 1536,512 --tokens 2048 --timeline --costs " +
      costs);
  EXPECT_NEAR(other["timeline"][0][0]["end"].get<double>(), 10 * 0.75 + 20 * 0.5625, 1e-9);
  expect_error(request + costs + " --tokens 4096", 2, {"--tokens is 4096: ", "measured with 2048"});
  expect_error("schedule seq1f1b -d 1 -m 1 --slice-sizes 100,28 --tokens 128 --costs " + costs, 2,
               {"c.json: costs: slice_sizes sums to 2048, and the schedule's slices hold 128"});
  expect_error(request + folder.write("d.json", profile("")), 2,
               {"d.json: costs: balanced slices need the times of at least two slices"});
}

TEST(SlicesCommand, CompareFitsAProfileOfSlicesToo) {
  const TemporaryFolder folder;
  const std::string stage =
      R"({"F":[10,20],"I":[15,25],"W":[5,5],"after_F":[8,8],"sent_forward":8,"layers":4})";
  const std::string costs = folder.write(
      "c.json",
      fmt::format(R"({{"schema":1,"slice_sizes":[1024,1024],"stages":[{0},{0}]}})", stage));
  const std::string request = "compare seq1f1b -d 2 -m 4 --costs " + costs;
  const auto makespan = [](const Json& json) {
    const Json& row = json["schedules"][0];
    const std::string command = row["command"];
    EXPECT_EQ(json_of(command.substr(std::string("sluice ").size()))["makespan"], row["makespan"])
        << command;
    return row["makespan"].get<double>();
  };
  const Json balanced = json_of(request + " --slice-sizes balanced");
  EXPECT_EQ(balanced["slice_sizes"], Json({1280, 768}));
  EXPECT_LT(makespan(balanced), makespan(json_of(request)));
}

TEST(SlicesCommand, MistakesGetOneClearLine) {
  const std::string request = "schedule seq1f1b -d 4 -m 8 ";
  expect_error(request + "--model gpt-7", 2, {"--model is 'gpt-7': did you mean 'gpt-7b'?"});
  expect_error(request + "--model zzz", 2,
               {"--model is 'zzz': no such file; needs one of gpt-2.7b, "});
  expect_error(request + "--slices 4 --slice-sizes balanced", 2,
               {"--slice-sizes is 'balanced': no model says", "give --model gpt-2.7b | "});
  expect_error(request + "--model gpt-7b --slice-sizes balanced", 2,
               {"--slice-sizes is 'balanced': --slices is 1; cut sequences with --slices 4\n"});
  expect_error(request + "--model gpt-7b --slices 4 --slice-multiple 64", 2,
               {"--slice-multiple needs --slice-sizes balanced\n"});
  expect_error(request + "--model gpt-7b --slices 4 --slice-sizes balanced --slice-multiple 4097",
               2, {"--slice-multiple is 4097: a sequence has 4096 tokens; use a smaller"});
  expect_error(request + "--model gpt-7b --slices 4 --slice-sizes balanced --slice-multiple 0", 2,
               {"--slice-multiple is '0'"});
  expect_error(request + "--slices 4 --slice-sizes balancd", 2,
               {"--slice-sizes is 'balancd'", "numbers joined by commas, even or balanced"});
  expect_error(request + "--slices 9 --tokens 8 --model gpt-7b --slice-sizes balanced", 2,
               {"--slices is 9", "8 tokens"});
  expect_error(request + "--model gpt-7b --costs x.json", 2,
               {"--costs 'x.json' and --model are both given"});
  expect_error("schedule 1f1b -d 4 -m 8 --model gpt-7b --slices 4 --slice-sizes balanced", 2,
               {"--slices is 4", "seq1f1b"});
  expect_error("compare -d 4 -m 8 --slice-sizes balanced", 2, {"no model says how much work"});
}

}  // namespace
}  // namespace sluice
