// The command line as users meet it: the real program, its output, its exit codes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "sluice/schedule/generators/generator.h"
#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::expect_error;
using test::Ran;
using test::run_sluice;
using test::TemporaryFolder;

Json json_of(const std::string& arguments, int code = 0) {
  const Ran ran = run_sluice(arguments + " --format json");
  EXPECT_EQ(ran.code, code) << ran.err;
  EXPECT_EQ(ran.err, "");
  return Json::parse(ran.out);
}

// With a costs file, whose origin is remarked on.
Json json_with(const std::string& arguments) {
  const Ran ran = run_sluice(arguments + " --format json");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  return Json::parse(ran.out);
}

TEST(Cli, ScheduleGivesTheFiguresOfThePapers) {
  const Json half = json_of("schedule v-half --devices 8 --microbatches 16");
  EXPECT_EQ(half["span"], 113);
  EXPECT_EQ(half["max_peak"], 10);
  const Json min = json_of("schedule v-min --devices 8 --microbatches 16");
  EXPECT_EQ(min["span"], 123);
  EXPECT_EQ(min["max_peak"], 8);
  const Json zb = json_of("schedule zb-v --devices 8 --microbatches 16");
  EXPECT_EQ(zb["span"], 96);
  EXPECT_EQ(zb["max_peak"], 16);
  const Json sliced = json_of("schedule zb-v --devices 8 --microbatches 16 --slices 4");
  EXPECT_EQ(sliced["span"], 96);
  EXPECT_EQ(sliced["makespan"], 97.75);
  EXPECT_EQ(sliced["max_peak"], 5.5);
  const Json seq = json_of("schedule seq1f1b --devices 4 --microbatches 8 --slices 2");
  EXPECT_EQ(seq["makespan"], 28.5);
  EXPECT_EQ(seq["peak_activations"], Json({2.5, 2, 1.5, 1}));
}

TEST(Cli, JsonHasEveryFieldOfTheContract) {
  const Json json = json_of("schedule dualpipe --devices 4 --microbatches 8 --timeline");
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["name"], "dualpipe");
  EXPECT_EQ(json["devices"], 4);
  EXPECT_EQ(json["stages"], 4);
  EXPECT_EQ(json["stages_per_device"], 2);
  EXPECT_EQ(json["microbatches"], 8);
  EXPECT_EQ(json["slices"], 1);
  EXPECT_EQ(json["pipes"], 2);
  EXPECT_EQ(json["valid"], true);
  EXPECT_EQ(json["problems"], Json::array());
  EXPECT_EQ(json["placement"], Json({{0, 3}, {1, 2}, {2, 1}, {3, 0}}));
  EXPECT_EQ(json["receive_buffers"].size(), 4u);
  EXPECT_EQ(json["programs"].size(), 4u);
  EXPECT_EQ(json["programs"][0].get<std::string>().substr(0, 12), "0F0@0,0F2@0,");
  for (const char* key :
       {"makespan", "span", "ideal", "bubble", "bubble_rate", "bubble_fraction", "max_peak", "ops"})
    EXPECT_TRUE(json[key].is_number()) << key;
  EXPECT_EQ(json["timeline"].size(), 4u);
  EXPECT_EQ(json["timeline"][0][0], Json({{"op", "0F0@0"}, {"start", 0}, {"end", 1}}));
  EXPECT_FALSE(json["critical_path"].empty());
  EXPECT_FALSE(json_of("schedule 1f1b --devices 2 --microbatches 2").contains("timeline"));
}

TEST(Cli, ABuildingBlockSaysWhatPeakItsLifespansImply) {
  const Json half = json_of("schedule v-half --devices 4 --microbatches 8");
  EXPECT_EQ(half["block"]["period"], 6);
  EXPECT_EQ(half["block"]["lifespans"].size(), 4u);
  EXPECT_EQ(half["block"]["lifespans"][0], Json({30, 6}));
  EXPECT_EQ(half["block"]["peak_bound"], half["max_peak"]);
  const std::string block = SLUICE_SOURCE_DIR "/examples/block-v-half.toml";
  const std::string own = "schedule block --devices 4 --microbatches 8 --block " + block;
  EXPECT_EQ(json_of(own)["block"], half["block"]);
  EXPECT_NE(run_sluice(own).out.find("\nbuilding block of period 6: at most 6 stage-activations, "
                                     "from lifespans of 30 + 6 slots on device 0\n"),
            std::string::npos);
  EXPECT_EQ(run_sluice("schedule v-half -d 4 -m 8").out.find("building block"), std::string::npos);
  for (const char* name : {"1f1b", "zb-v"})
    EXPECT_FALSE(json_of(fmt::format("schedule {} -d 4 -m 8", name)).contains("block")) << name;
}

TEST(Cli, ListNamesEverySchedule) {
  const Ran ran = run_sluice("schedule --list");
  EXPECT_EQ(ran.code, 0);
  for (const Generator* generator : all_generators()) {
    const std::string start = "\n" + std::string(generator->name) + " ";
    EXPECT_NE(ran.out.find(start), std::string::npos) << generator->name;
  }
}

TEST(Cli, EveryFormatIsWritten) {
  const TemporaryFolder folder;
  const std::string base = "schedule v-half --devices 4 --microbatches 8 --out ";
  for (const auto& [name, start] :
       std::vector<std::pair<std::string, std::string>>{{"x.svg", "<svg"},
                                                        {"x.html", "<!doctype html>"},
                                                        {"x.json", "{"},
                                                        {"x.csv", "# sluice {"}}) {
    const std::string path = folder.path() + "/" + name;
    const Ran ran = run_sluice(base + path);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.out + ran.err, "");
    EXPECT_TRUE(test::read_text(path).starts_with(start)) << name;
  }
  EXPECT_TRUE(run_sluice(base + "- --format torch-csv").out.starts_with("0F0,0F1,"));
  const Json chrome = Json::parse(run_sluice(base + "- --format chrome").out);
  EXPECT_GT(chrome["traceEvents"].size(), 192u);
}

TEST(Cli, WhatIsWrittenIsReadBack) {
  const TemporaryFolder folder;
  const std::string csv = folder.path() + "/s.csv";
  for (const char* request :
       {"zb-v --devices 4 --microbatches 8 --slices 2", "dualpipe --devices 4 --microbatches 8",
        "dualpipe-v --devices 4 --microbatches 8",
        "seq1f1b --devices 4 --microbatches 4 --slice-sizes 2048,1024,1024",
        "amdp --devices 4 --microbatches 8 --windows 3 --order R --weights stash",
        "pipedream --devices 4 --microbatches 1 --windows 9",
        "pipedream-2bw --devices 4 --microbatches 4 --windows 3"}) {
    for (const char* form : {"", " --lowered"}) {
      SCOPED_TRACE(std::string(request) + form);
      const std::string schedule = std::string("schedule ") + request;
      ASSERT_EQ(run_sluice(schedule + form + " --format csv --out " + csv).code, 0);
      const Ran check = run_sluice("check " + csv);
      EXPECT_EQ(check.code, 0) << check.out;
      EXPECT_EQ(std::count(check.out.begin(), check.out.end(), '\n'), 1);
      const Json made = json_of(schedule), read = json_of("simulate " + csv);
      for (const char* key :
           {"name", "makespan", "span", "peak_activations", "placement", "ops", "receive_buffers"})
        EXPECT_EQ(made[key], read[key]) << key;
      for (const char* key : {"windows", "weights", "placement_by_pipe", "owners", "weight_copies",
                              "accumulators", "steady_utilisation", "mismatch_share", "max_delay"})
        EXPECT_EQ(made.value(key, Json()), read.value(key, Json())) << key;
    }
  }
}

TEST(Cli, TorchCsvIsReadBack) {
  const TemporaryFolder folder;
  const std::string csv = folder.path() + "/s.csv";
  for (const Generator* generator : all_generators()) {
    if (generator->knobs.block || generator->knobs.windows || generator->name == "dualpipe")
      continue;
    std::string request = fmt::format("schedule {} --devices 4 --microbatches 8", generator->name);
    if (generator->knobs.memory_cap) request += " --memory-cap 6";
    SCOPED_TRACE(request);
    ASSERT_EQ(run_sluice(request + " --format torch-csv --out " + csv).code, 0);
    EXPECT_EQ(json_of("simulate " + csv)["programs"], json_of(request)["programs"]);
  }
}

// PyTorch divides gradients by the number of microbatches at REDUCE_GRAD, and computes no FSDP
// stage without UNSHARD.
TEST(Cli, LoweredTorchCsvHoldsAllThatPyTorchExecutes) {
  const TemporaryFolder folder;
  const std::string csv = folder.path() + "/s.csv", native = folder.path() + "/native.csv";
  const std::string request = "schedule zb-v --devices 4 --microbatches 8";
  const std::string to_torch = " --format torch-csv --out ";
  ASSERT_EQ(run_sluice(request + " --lowered" + to_torch + csv).code, 0);
  const std::string text = test::read_text(csv);
  for (int stage = 0; stage < 8; ++stage)
    for (const char* kind : {"UNSHARD", "REDUCE_GRAD", "RESHARD"})
      EXPECT_NE(text.find(fmt::format("{}{}", stage, kind)), std::string::npos) << stage << kind;
  EXPECT_EQ(run_sluice("check " + csv).code, 0);
  EXPECT_EQ(json_of("simulate " + csv)["makespan"], json_of(request)["makespan"]);
  EXPECT_EQ(run_sluice("simulate " + csv + " --format torch-csv").out, text);
  ASSERT_EQ(run_sluice(request + " --lowered --format csv --out " + native).code, 0);
  EXPECT_EQ(test::read_text(native).find("REDUCE_GRAD"), std::string::npos);
  EXPECT_NE(run_sluice("simulate " + native + " --format torch-csv").out.find("7REDUCE_GRAD"),
            std::string::npos);
}

TEST(Cli, EveryGoldenRowOfPyTorchPassesCheck) {
  int files = 0;
  for (const std::string& path : test::files_in(std::string(SLUICE_TEST_DATA) + "/torch")) {
    const Ran ran = run_sluice("check " + path);
    EXPECT_EQ(ran.code, 0) << path << ": " << ran.out << ran.err;
    EXPECT_TRUE(ran.out.starts_with("valid: ")) << ran.out;
    ++files;
  }
  EXPECT_GE(files, 4);
}

TEST(Cli, AnInvalidScheduleExitsWithOneAndNamesEveryProblem) {
  const TemporaryFolder folder;
  const std::string cycle = folder.write("cycle.csv", "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n");
  const Ran ran = run_sluice("check " + cycle);
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("deadlock: device 0 at position 1 (0B0) waits for 1B0; device 1 at "
                         "position 0 (1F1) waits for 0F1"),
            std::string::npos)
      << ran.out;
  EXPECT_EQ(json_of("check " + cycle, 1)["valid"], false);
  const Json simulated = json_of("simulate " + cycle, 1);
  EXPECT_EQ(simulated["problems"].size(), 1u);
  EXPECT_FALSE(simulated.contains("makespan"));
  // A missing op and a doubled one: both are named.
  const Json two = json_of("check " + folder.write("two.csv", "0F0,0F0,0B0\n1F0\n"), 1);
  EXPECT_EQ(two["problems"].size(), 2u) << two["problems"];
}

TEST(Cli, BuffersLimitReceives) {
  EXPECT_EQ(json_of("schedule looped-bfs --devices 4 --microbatches 8")["receive_buffers"][0], 8);
  const Ran ran = run_sluice("schedule looped-bfs --devices 4 --microbatches 8 --buffers 7");
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("needs more than 7 receive buffers"), std::string::npos) << ran.err;
  EXPECT_EQ(run_sluice("schedule looped-bfs --devices 4 --microbatches 8 --buffers 8").code, 0);
}

TEST(Cli, AFullDiskIsATemporaryFailure) {
  if (!std::filesystem::exists("/dev/full")) GTEST_FAIL() << "no /dev/full here";
  const Ran ran = test::run_shell(std::string("'") + SLUICE_BINARY +
                                  "' schedule 1f1b --devices 4 --microbatches 8 >/dev/full");
  EXPECT_EQ(ran.code, 75);
  EXPECT_NE(ran.err.find("No space left on device"), std::string::npos);
}

TEST(Cli, AFileOverItsLimitLeavesNothing) {
  const TemporaryFolder folder;
  const Ran ran = test::run_shell(
      std::string("ulimit -f 8; '") + SLUICE_BINARY +
          "' schedule zb-v --devices 8 --microbatches 64 --format svg --out large.svg",
      folder.path());
  EXPECT_EQ(ran.code, 75);
  EXPECT_NE(ran.err.find("cannot write 'large.svg': File too large"), std::string::npos) << ran.err;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Cli, StandardFilesThatCannotBeWrittenChangeNoExitCode) {
  const auto code = [](const std::string& flags) {
    return test::run_shell(std::string("'") + SLUICE_BINARY + "' " + flags).code;
  };
  EXPECT_EQ(code("schedule 1f1b --devices 0 --microbatches 8 2>/dev/full"), 2);
  EXPECT_EQ(code("schedule 1f1b --devices 0 --microbatches 8 2>&-"), 2);
  EXPECT_NE(code("schedule 1f1b --devices 4 --microbatches 8 >&-"), 0);
}

TEST(Cli, OutNeverReplacesAPipeOrALink) {
  const TemporaryFolder folder;
  const std::string target = folder.write("target.csv", "old\n"),
                    link = folder.path() + "/link.csv";
  std::filesystem::create_symlink(target, link);
  const std::string make = "schedule 1f1b --devices 2 --microbatches 2 --format csv --out ";
  EXPECT_EQ(run_sluice(make + link).code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(test::read_text(target).starts_with("# sluice"));
  const std::string pipe = folder.path() + "/pipe";
  const Ran ran = test::run_shell("mkfifo '" + pipe + "'; cat '" + pipe + "' & '" + SLUICE_BINARY +
                                  "' " + make + "'" + pipe + "'; wait");
  EXPECT_TRUE(ran.out.starts_with("# sluice")) << ran.err;
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST(Cli, TransformsOfTheBackward) {
  const std::string request = "schedule zb-h1 --devices 2 --microbatches 4";
  EXPECT_EQ(json_of(request)["ops"], 24);
  EXPECT_LT(json_of(request + " --backward fused")["ops"].get<int>(), 24);
  EXPECT_EQ(json_of("schedule 1f1b --devices 2 --microbatches 4 --backward split")["ops"], 24);
  expect_error(request + " --backward half", 2, {"needs split or fused"});
}

TEST(Cli, ReductionsAreWrittenPricedAndDrawn) {
  const std::string request = "schedule 1f1b --devices 2 --microbatches 4 --reduce --reduce-time 3";
  const Json json = json_of(request + " --timeline");
  EXPECT_EQ(json["makespan"], 18);
  EXPECT_EQ(json["exposed_reduction"], 3);
  EXPECT_EQ(json["programs"][1], "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3,1REDUCE_GRAD");
  EXPECT_EQ(json["reductions"][0][0], Json({{"op", "0REDUCE_GRAD"}, {"start", 15}, {"end", 18}}));
  const std::string grid = run_sluice(request).out;
  EXPECT_NE(grid.find("\n                                                       R0------\n"),
            std::string::npos)
      << grid;
  EXPECT_NE(grid.find("3 of the makespan"), std::string::npos) << grid;
  EXPECT_NE(run_sluice(request + " --format svg").out.find("<title>0REDUCE_GRAD: 15 to 18"),
            std::string::npos);
  EXPECT_NE(run_sluice(request + " --format html").out.find("\"reductions\":[0,15,18]"),
            std::string::npos);
  const Json chrome = Json::parse(run_sluice(request + " --format chrome").out);
  const auto& events = chrome["traceEvents"];
  const auto found = std::find_if(events.begin(), events.end(), [](const Json& event) {
    return event["name"] == "1REDUCE_GRAD";
  });
  ASSERT_NE(found, events.end());
  EXPECT_EQ((*found)["cat"], "reduce");
  EXPECT_EQ((*found)["dur"], 3000);
}

TEST(Cli, ContentionIsAppliedAndSaid) {
  const std::string request = "schedule 1f1b --devices 2 --microbatches 2 --contention 2,1";
  const Json json = json_of(request);
  EXPECT_EQ(json["makespan"], 6);  // by hand in Contention.OneFOneBByHand
  EXPECT_EQ(json["contention"], Json({2, 1}));
  EXPECT_NE(run_sluice(request).out.find("stage-activations, with contention\n"),
            std::string::npos);
  EXPECT_FALSE(json_of("schedule 1f1b --devices 2 --microbatches 2").contains("contention"));
  const TemporaryFolder folder;
  const std::string stage = R"({"F":[1],"I":[1],"W":[1]})";
  const std::string costs = folder.write(
      "costs.json", R"({"schema":1,"contention":[2,1],"stages":[)" + stage + "," + stage + "]}");
  EXPECT_EQ(json_with("schedule 1f1b --devices 2 --microbatches 2 --costs " + costs)["makespan"],
            6);
  expect_error(request + " --costs " + costs, 2, {" and --contention are both given"});
  expect_error("schedule 1f1b --devices 4 --microbatches 4 --contention 2,1", 2,
               {"--contention has 2 numbers, but there are 4 devices"});
  expect_error("compare --devices 4 --microbatches 4 --contention 2,1", 2,
               {"--contention has 2 numbers, but there are 4 devices"});
  EXPECT_NE(run_sluice("compare --devices 2 --microbatches 2 --contention 2,1")
                .out.find("per device and microbatch, with contention\n"),
            std::string::npos);
  EXPECT_EQ(json_of("compare --devices 2 --microbatches 2 --contention 2,1")["contention"],
            Json({2, 1}));
}

TEST(Cli, AMillionCellsOfGarbageAreRefusedWithTheFirstOfThem) {
  const TemporaryFolder folder;
  std::string text;
  for (int n = 0; n < 1000000; ++n)
    text += n % 1000 == 999 ? "#!\n" : "#!,";
  expect_error("check " + folder.write("garbage.csv", text), 2, {"garbage.csv", "row 1, column 1"});
  // Well-formed ops that make no schedule are an invalid schedule, with a bounded answer.
  text.clear();
  for (int n = 0; n < 1000000; ++n)
    text += n % 1000 == 999 ? "0F0\n" : "0F0,";
  const Ran ran = run_sluice("check " + folder.write("same.csv", text));
  EXPECT_EQ(ran.code, 1);
  EXPECT_LT(ran.out.size(), 10000u);
}

TEST(Cli, CostsFilesPriceSchedulesInSecondsAndBytes) {
  const TemporaryFolder folder;
  const std::string costs = folder.write(
      "costs.json",
      R"({"schema":1,"stages":[{"F":[1],"I":[2],"W":[1],"after_F":[100],"after_I":[60]},
                               {"F":[2],"I":[2],"W":[1],"after_F":[50],"after_I":[60]}],
          "default_link":{"latency_s":0.5}})");
  const Json json = json_with("schedule zb-h1 --devices 2 --microbatches 4 --costs " + costs);
  EXPECT_EQ(json["peak_bytes"].size(), 2u);
  EXPECT_GT(json["max_peak_bytes"].get<double>(), 100);
  expect_error("schedule 1f1b --devices 3 --microbatches 4 --costs " + costs, 2,
               {"2 stages", "has 3"});
  expect_error("schedule zb-1p --devices 3 --microbatches 4 --costs " + costs, 2, {"2 stages"});
  expect_error("schedule 1f1b --devices 2 --microbatches 4 --times 1,1,1 --costs " + costs, 2,
               {"--costs", "--times"});
}

const char* const kMeasuredOn =
    R"("measured_on":{"model":{"shape":"gpt2","layers":4,"dim":64,"heads":4,"kv_heads":4,
       "ffn_dim":256,"vocab_size":257},"sequence_length":256,"sequences":1,"dtype":"float32",
       "recompute":"none","tensor_parallel_degree":1,"device":"cpu"})";

TEST(Cli, CostsSayWhatTheyWereMeasuredOnAndThatTheyDoNot) {
  const TemporaryFolder folder;
  const std::string stages = R"("stages":[{"F":[1,1],"I":[2,2],"W":[1,1]}]})";
  const std::string known =
      folder.write("known.json", R"({"schema":1,)" + std::string(kMeasuredOn) + "," + stages);
  const std::string unknown = folder.write("unknown.json", R"({"schema":1,)" + stages);
  const std::string request = "seq1f1b --devices 1 --microbatches 2 --slices 2 --costs ";
  const Ran said = run_sluice("schedule " + request + known);
  EXPECT_EQ(said.code, 0);
  EXPECT_EQ(said.err, "sluice: " + known +
                          ": measured on gpt2 of 4 layers, dim 64, 4 heads, 4 kv_heads, ffn_dim "
                          "256, vocab_size 257; 1 x 256 tokens, float32, recompute none, "
                          "tensor_parallel_degree 1, cpu\n");
  EXPECT_EQ(run_sluice("schedule " + request + unknown).err,
            "sluice: " + unknown + ": has no measured_on, so it may be of another model\n");

  // A length that flags or the schedule's file state must be the measured one.
  EXPECT_EQ(run_sluice("schedule " + request + known + " --tokens 256").code, 0);
  expect_error("schedule " + request + known + " --tokens 512", 2,
               {"known.json: measured with sequences of 256 tokens", "have 512", "sluice profile",
                "correct --tokens"});
  const std::string csv = folder.path() + "/s.csv";
  for (const auto& [sizes, code] : {std::pair{"100,156", 0}, std::pair{"100,100", 2}}) {
    ASSERT_EQ(run_sluice(fmt::format("schedule seq1f1b -d 1 -m 2 --tokens {} --slice-sizes {} "
                                     "--out {}",
                                     code == 0 ? 256 : 200, sizes, csv))
                  .code,
              0);
    EXPECT_EQ(run_sluice("simulate " + csv + " --costs " + known).code, code) << sizes;
  }
}

TEST(Cli, OfAFlagGivenTwiceTheLastWins) {
  const Json json = json_of(
      "schedule 1f1b -d 4 --devices 2 --microbatches 8 -m 3 --times 9,9,9 --times 1,2,1 "
      "--reduce --reduce");
  EXPECT_EQ(json["devices"], 2);
  EXPECT_EQ(json["microbatches"], 3);
  EXPECT_EQ(json["ideal"], 12);
  const Json sliced =
      json_of("schedule seq1f1b -d 2 -m 2 --tokens 9 --slice-sizes 1,2,6 --slice-sizes 5,4");
  EXPECT_EQ(sliced["slices"], 2);
}

// Whatever bytes a file holds or is called by, a terminal sees none that could command it.
TEST(Cli, EscapesOfFilesAreWrittenOut) {
  const TemporaryFolder folder;
  const std::string escape = "\x1b]0;owned\x07\x1b[2J\x9b";
  const std::string rows = "0F0,0B0\n";
  const std::string named = folder.write("a" + escape + ".csv", rows),
                    header = folder.write("header.csv",
                                          "# sluice {\"schema\":1,\"name\":\"n"
                                          "\\u001b[2J\\u009b\"}\n" +
                                              rows),
                    cell = folder.write("cell.csv", "0F0," + escape + "\n"),
                    costs = folder.write("costs.json", "{\"schema\":1,\"k\\u001b[2J\":1}"),
                    block = folder.write("block.toml", "a" + escape + " = 1\n");
  const auto quoted = [](const std::string& path) { return "'" + path + "'"; };
  for (const std::string& request :
       {"check " + quoted(named), "simulate " + quoted(named), "simulate " + header,
        "simulate --format svg " + header, "check " + header, "check " + cell,
        "check '" + folder.path() + "/absent" + escape + "'",
        "simulate " + header + " --costs " + costs, "schedule block -d 2 -m 2 --block " + block,
        "schedule 'x" + escape + "' -d 2 -m 2", "schedule 1f1b -d 'x" + escape + "' -m 2",
        "schedule 1f1b '--x" + escape + "' -m 2"}) {
    SCOPED_TRACE(request);
    const Ran ran = run_sluice(request);
    const std::string shown = ran.out + ran.err;
    EXPECT_FALSE(shown.empty());
    EXPECT_EQ(shown.find_first_of("\x1b\x07\x9b"), std::string::npos) << shown;
  }
}

TEST(Cli, HelpIsThereForEveryCommand) {
  for (const char* command : {"", "schedule", "check", "simulate", "compare"}) {
    const Ran ran = run_sluice(std::string(command) + " --help");
    EXPECT_EQ(ran.code, 0);
    EXPECT_NE(ran.out.find("Usage"), std::string::npos);
  }
  const std::string schedule = run_sluice("schedule --help").out;
  for (const char* words : {"into N slices", "without --format, its ending names the format"})
    EXPECT_NE(schedule.find(words), std::string::npos) << words;
  EXPECT_EQ(run_sluice("--version").out, "sluice 0.1.0\n");
}

}  // namespace
}  // namespace sluice
