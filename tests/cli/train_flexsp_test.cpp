// sluice train with flexsp.enabled, as users meet it: batches are planned while the run trains,
// written down before each step, replayed with the same bits, and planned alike after a resume.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "sluice/base/text.h"
#include "support/golden.h"
#include "support/tiny_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;

// Groups of two and four ranks are worth it: attention is dear, exchanges are not.
constexpr const char* kCosts = R"({"schema": 1,
  "stages": [{"F": [1e-3], "I": [1e-3], "W": [1e-3], "layers": 4}],
  "flexsp": {"a1": 1e-6, "a2": 1e-5, "b1": 1e-4, "stash_bytes_per_token": 100,
    "state_bytes": 1000, "all_to_all_bytes_per_token": 2048,
    "bytes_per_s": {"2": 1e9, "4": 5e8}, "heads": 4}}
)";
// 4 data ranks, one stage or two; 4 heads.
constexpr const char* kPlanned =
    "--parallelism.data_parallel_shard_degree=4 --parallelism.pipeline_parallel_schedule=1f1b "
    "--parallelism.num_microbatches=2 --parallelism.costs=costs.json --flexsp.enabled ";
constexpr const char* kOneStage = "--parallelism.pipeline_parallel_degree=1 ";

class TrainFlexsp : public test::TinyRun {
 protected:
  TrainFlexsp() {
    std::string lines;
    for (int n = 0; n < 60; ++n)
      lines += fmt::format("{{\"text\": \"{}\"}}\n",
                           std::string(static_cast<std::size_t>(1 + n * 37 % 31), "abcde"[n % 5]));
    folder_.write("corpus.jsonl", lines);
    std::string config = test::kTinyConfig;
    const auto change = [&](const std::string& from, const std::string& to) {
      config.replace(config.find(from), from.size(), to);
    };
    change("path = \"corpus.txt\"\nformat = \"text\"\n",
           "path = \"corpus.jsonl\"\npacking = \"sequences\"\n");
    change("heads = 2", "heads = 4");
    folder_.write("run.toml", config);
    folder_.write("costs.json", kCosts);
  }

  std::string read(const std::string& name) const {
    return test::read_text(folder_.path() + "/" + name);
  }
  std::vector<Json> lines_of(const std::string& name) const {
    std::vector<Json> out;
    const std::string all = read(name);
    for (const std::string_view line : split(all, '\n'))
      if (!line.empty()) out.push_back(Json::parse(line));
    return out;
  }
  std::vector<double> losses() const {
    std::vector<double> out;
    for (const Json& row : lines_of("metrics/metrics.jsonl"))
      out.push_back(row["loss"].get<double>());
    return out;
  }
  std::string weights() const {
    const Ran ran = sluice("inspect checkpoints --format json");
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.code == 0 ? Json::parse(ran.out)["weights_sha256"] : "";
  }
  // The small program, which needs no torch.
  Ran dry_run(const std::string& flags) const {
    return test::run_shell(fmt::format("'{}' train run.toml {} --dry-run", SLUICE_BINARY, flags),
                           folder_.path());
  }
  void expect_refused(const std::string& flags, int code, const std::string& part) const {
    SCOPED_TRACE(part);
    const Ran ran = dry_run(flags);
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_NE(ran.err.find(part), std::string::npos) << ran.err;
    EXPECT_EQ(split(ran.err, '\n').size(), 2U) << ran.err;
  }
};

// Largest degree of any group.
int largest_degree(const std::vector<Json>& plans) {
  int most = 0;
  for (const Json& plan : plans)
    for (const Json& microbatch : plan["microbatches"])
      for (const Json& group : microbatch["groups"])
        most = std::max(most, group["degree"].get<int>());
  return most;
}

TEST_F(TrainFlexsp, GivesTheLossesOfARunWithoutItAndReplaysWithTheSameBits) {
  ASSERT_EQ(train("--training.steps=4").code, 0);
  const std::vector<double> plain = losses();
  for (const char* stages : {kOneStage, "--parallelism.pipeline_parallel_degree=2 "}) {
    SCOPED_TRACE(stages);
    clear();
    const std::string flags = kPlanned + std::string(stages) + "--training.steps=4 ";
    const Ran planned = train(flags + "--trace step.json");
    ASSERT_EQ(planned.code, 0) << planned.err;
    EXPECT_NE(planned.err.find("batches are planned by parallelism.costs, in groups of 1, 2, 4"),
              std::string::npos)
        << planned.err;
    const std::vector<double> ours = losses();
    ASSERT_EQ(ours.size(), plain.size());
    EXPECT_NEAR(ours[0], plain[0], 1e-6);
    for (std::size_t n = 0; n < plain.size(); ++n)
      EXPECT_NEAR(ours[n], plain[n], 1e-4) << n;
    const std::vector<Json> plans = lines_of("metrics/plans.jsonl");
    ASSERT_EQ(plans.size(), 4U);
    EXPECT_GE(largest_degree(plans), 2);
    for (const Json& row : lines_of("metrics/metrics.jsonl")) {
      EXPECT_GT(row["predicted_s"].get<double>(), 0);
      EXPECT_GT(row["plan_ms"].get<double>(), 0);
      EXPECT_GE(row["plan_wait_s"].get<double>(), 0);
      EXPECT_GT(row["all_to_all_s"].get<double>(), 0);
      EXPECT_GE(row["padded_tokens"].get<int>(), row["tokens"].get<int>());
      for (std::size_t rank = 0; rank < row["peak_stash_bytes"].size(); ++rank)
        EXPECT_LE(row["peak_stash_bytes"][rank].get<std::int64_t>(),
                  row["predicted_peak_stash_bytes"][rank].get<std::int64_t>());
    }

    const std::string bits = weights();
    std::filesystem::copy_file(folder_.path() + "/metrics/plans.jsonl",
                               folder_.path() + "/plans.jsonl",
                               std::filesystem::copy_options::overwrite_existing);
    clear();
    const Ran replayed =
        train(flags + "--flexsp.enabled=false --flexsp.plan_file=plans.jsonl --parallelism.costs=");
    ASSERT_EQ(replayed.code, 0) << replayed.err;
    EXPECT_EQ(weights(), bits);
    EXPECT_EQ(losses(), ours);
    const Json row = lines_of("metrics/metrics.jsonl").front();
    EXPECT_TRUE(row.contains("all_to_all_s"));
    EXPECT_FALSE(row.contains("predicted_s"));
  }
}

TEST_F(TrainFlexsp, AKilledRunResumesWithTheSamePlansAndBits) {
  for (const char* sharding : {"states", "parameters"}) {
    SCOPED_TRACE(sharding);
    clear();
    const std::string flags =
        fmt::format("{} {} --lr_scheduler.min_lr_ratio=1 --parallelism.sharding={} ", kPlanned,
                    kOneStage, sharding);
    const int saved = killed_after_save(flags + "--training.steps=1000000");
    ASSERT_GT(saved, 0);
    const std::string rest = flags + fmt::format("--training.steps={}", saved + 4);
    const Ran resumed = train(rest);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_NE(resumed.err.find(fmt::format("resumed from step {}", saved)), std::string::npos)
        << resumed.err;
    const std::string bits = weights(), plans = read("metrics/plans.jsonl");
    const std::vector<double> found = losses();
    EXPECT_EQ(split(plans, '\n').size(), static_cast<std::size_t>(saved) + 5);
    clear();
    ASSERT_EQ(train(rest).code, 0);
    EXPECT_EQ(weights(), bits);
    EXPECT_EQ(losses(), found);
    EXPECT_EQ(read("metrics/plans.jsonl"), plans);
  }
}

// Of the killed run the line of a step that was not saved, and half a line.
TEST_F(TrainFlexsp, AResumedRunPlansStepsAgainThatWereNotSaved) {
  const std::string flags = kPlanned + std::string(kOneStage);
  ASSERT_EQ(train(flags + "--training.steps=4").code, 0);
  const std::string until_4 = read("metrics/plans.jsonl");
  ASSERT_EQ(train(flags + "--training.steps=6").code, 0);
  const std::string until_6 = read("metrics/plans.jsonl");
  EXPECT_EQ(until_6.substr(0, until_4.size()), until_4);
  folder_.write("metrics/plans.jsonl", until_6 + "{\"step\": 7, \"micr");
  std::filesystem::remove_all(folder_.path() + "/checkpoints/step-00000006");
  ASSERT_EQ(train(flags + "--training.steps=6 --checkpoint.load=latest").code, 0);
  EXPECT_EQ(read("metrics/plans.jsonl"), until_6);
}

// Dealt, a rank would have whole sequences of up to 32 tokens, and there is room for 10.
TEST_F(TrainFlexsp, ValidationIsPlannedAndHasTheLossOfTheSameSamplesDealt) {
  const auto validations = [&] {
    std::vector<double> out;
    for (const Json& row : lines_of("metrics/metrics.jsonl"))
      out.push_back(row["validation_loss"].get<double>());
    return out;
  };
  const std::string two = "--training.steps=2 --validation.interval=1 ";
  ASSERT_EQ(train(two).code, 0);
  const std::vector<double> plain = validations();
  ASSERT_EQ(plain.size(), 2U);
  for (const char* stages : {kOneStage, "--parallelism.pipeline_parallel_degree=2 "}) {
    SCOPED_TRACE(stages);
    clear();
    const Ran ran = train(two + kPlanned + stages +
                          "--parallelism.sharding=parameters --parallelism.device_memory_mib=0.6");
    ASSERT_EQ(ran.code, 0) << ran.err;
    const std::vector<double> ours = validations();
    ASSERT_EQ(ours.size(), 2U);
    for (std::size_t n = 0; n < ours.size(); ++n)
      EXPECT_NEAR(ours[n], plain[n], 1e-5) << n;
  }
}

// The first 54 samples train; of the last 6, one is longer than all of them.
TEST_F(TrainFlexsp, AHeldOutSequenceThatFitsNoGroupIsRefusedByThatName) {
  std::string lines;
  for (int n = 0; n < 60; ++n)
    lines += fmt::format("{{\"text\": \"{}\"}}\n",
                         std::string(static_cast<std::size_t>(n == 57 ? 31 : 3), 'a'));
  folder_.write("corpus.jsonl", lines);
  const std::string flags = kPlanned + std::string(kOneStage) +
                            "--flexsp.max_degree=1 --parallelism.sharding=parameters "
                            "--parallelism.device_memory_mib=0.7 --training.steps=1 ";
  const Ran dry = dry_run(flags), ran = train(flags);
  for (const Ran* refused : {&dry, &ran}) {
    EXPECT_EQ(refused->code, 3) << refused->err;
    EXPECT_NE(refused->err.find("the held-out validation data has a sequence of 32 tokens, and the "
                                "largest group of ranks holds "),
              std::string::npos)
        << refused->err;
  }
  EXPECT_EQ(train(flags + "--validation.interval=0").code, 0);
}

TEST_F(TrainFlexsp, AResumedRunSaysWhatItsPlansGoByNowAndDidNotBefore) {
  const std::string flags = kPlanned + std::string(kOneStage);
  ASSERT_EQ(train(flags + "--training.steps=1").code, 0);
  std::string costs = kCosts;
  costs.replace(costs.find("\"a2\": 1e-5"), 10, "\"a2\": 7e-5");
  folder_.write("costs.json", costs);
  EXPECT_NE(
      dry_run(flags + "--training.steps=2")
          .out.find(
              "train would resume with other costs: batches would be planned by a2 7e-05 (was a2 "
              "1e-05)"),
      std::string::npos);
  const Ran resumed = train(flags + "--training.steps=2");
  EXPECT_NE(resumed.err.find("sluice: resumed with other costs: batches are planned by a2 7e-05 "
                             "(was a2 1e-05)\n"),
            std::string::npos)
      << resumed.err;
  EXPECT_EQ(train(flags + "--training.steps=3").err.find("other costs"), std::string::npos);
}

TEST_F(TrainFlexsp, KeysThatWouldCountForNothingAreRefused) {
  expect_refused("--data.packing=sequences --flexsp.trials=7", 2,
                 "flexsp.trials is 7 and flexsp.enabled is false: no batch is planned; set "
                 "flexsp.enabled = true, or leave the key out");
  folder_.write("plans.jsonl", "");
  expect_refused(
      "--flexsp.plan_file=plans.jsonl --flexsp.strategy=fixed:2", 2,
      "flexsp.strategy is fixed:2 and flexsp.plan_file is plans.jsonl: plans are replayed "
      "as they are; leave the key out");
  expect_refused(kPlanned + std::string("--flexsp.strategy=fixed:2 --flexsp.trials=7"), 2,
                 "flexsp.trials is 7 and flexsp.strategy is fixed:2: only flex tries");
  folder_.write("plans.jsonl", std::string("\0\1", 2));
  expect_refused("--flexsp.plan_file=plans.jsonl", 3, "plans.jsonl");
}

TEST_F(TrainFlexsp, AProfileHasWhatPlanningNeeds) {
  const Ran ran = sluice("profile run.toml --out measured.json " + std::string(kPlanned));
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("measurements with a mean error of "), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("all-to-all of 4 ranks: "), std::string::npos) << ran.out;
  const Json costs = Json::parse(read("measured.json"))["flexsp"];
  EXPECT_GT(costs["a1"].get<double>() + costs["a2"].get<double>(), 0);
  EXPECT_EQ(costs["heads"], 4);
  // Two layers of each device: queries, keys, values, output and their gradients, 32 floats each.
  EXPECT_EQ(costs["all_to_all_bytes_per_token"], 2 * 8 * 32 * 4);
  EXPECT_GT(costs["stash_bytes_per_token"].get<double>(), 0);
  EXPECT_GT(costs["state_bytes"].get<double>(), 0);
  EXPECT_EQ(costs["bytes_per_s"].size(), 2U);
  const Ran trained = train(kPlanned + std::string("--parallelism.costs=measured.json "
                                                   "--training.steps=1"));
  EXPECT_EQ(trained.code, 0) << trained.err;
}

TEST_F(TrainFlexsp, OtherStrategiesAndNumbersOfMicrobatchesThatAScheduleTakes) {
  const std::string two = kPlanned + std::string("--training.steps=2 ");
  ASSERT_EQ(train(two + kOneStage + "--flexsp.strategy=fixed:4").code, 0);
  for (const Json& plan : lines_of("metrics/plans.jsonl"))
    for (const Json& microbatch : plan["microbatches"])
      EXPECT_EQ(microbatch["groups"].size(), 1U);
  clear();
  ASSERT_EQ(train(two + kOneStage + "--flexsp.strategy=batch-ada --flexsp.max_degree=2").code, 0);
  EXPECT_LE(largest_degree(lines_of("metrics/plans.jsonl")), 2);
  clear();
  // It takes four microbatches or more, on two devices.
  const Ran ran = train(two +
                        "--parallelism.pipeline_parallel_schedule=dualpipe-v "
                        "--parallelism.num_microbatches=4 --parallelism.sharding=parameters");
  ASSERT_EQ(ran.code, 0) << ran.err;
  for (const Json& plan : lines_of("metrics/plans.jsonl"))
    EXPECT_GE(plan["microbatches"].size(), 4U);
}

TEST_F(TrainFlexsp, ADryRunShowsTheFirstPlansWithoutTorch) {
  const Ran ran = dry_run(kPlanned);
  ASSERT_EQ(ran.code, 0) << ran.err;
  for (const char* part : {"\nstep 1: ", " s predicted; ", " in groups of <", "\nstep 4: "})
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << ran.out;
}

// Nobody knows before the run how many microbatches its steps will have.
TEST_F(TrainFlexsp, NoNumberOfMicrobatchesIsGivenForThatOfPlannedSteps) {
  const Ran dry = dry_run(kPlanned + std::string(kOneStage));
  for (const char* part :
       {"1f1b on 4 ranks (4 data x 1 pipeline x 1 tensor), as many microbatches as are planned, of "
        "at most 32 tokens, backend threads",
        "elements that a rank sends per step if it has 2 microbatches of at most 32 tokens; a "
        "planned step may have more or fewer",
        "the bubble is that of 2 full microbatches", " elements that a rank sends in a step; "})
    EXPECT_NE(dry.out.find(part), std::string::npos) << part << dry.out;
  const Ran ran = train(kPlanned + std::string(kOneStage) + "--training.steps=1");
  EXPECT_NE(ran.err.find("schedule: 1f1b, as many microbatches as are planned, of at most 32 "
                         "tokens per step\n"),
            std::string::npos)
      << ran.err;
}

TEST_F(TrainFlexsp, TheNoteOnGroupsNamesThoseThatTheStrategyMakes) {
  for (const auto& [flag, part] :
       {std::pair{"--flexsp.strategy=fixed:4", ", in groups of 4 data ranks with at most 32 "},
        {"--flexsp.max_degree=1", ", in groups of 1 data rank with at most 32 tokens each"}}) {
    const Ran dry = dry_run(kPlanned + std::string(kOneStage) + flag);
    EXPECT_NE(dry.out.find(part), std::string::npos) << part << dry.out;
  }
  expect_refused(kPlanned + std::string(kOneStage) +
                     "--flexsp.strategy=fixed:1 --validation.interval=0 "
                     "--parallelism.sharding=parameters --parallelism.device_memory_mib=0.7",
                 3, "a group of flexsp.strategy = fixed:1 holds ");
}

TEST_F(TrainFlexsp, WhatDoesNotFitIsRefusedInOneLine) {
  const std::string one = kPlanned + std::string(kOneStage) + "--training.steps=1 ";
  expect_refused(one + "--data.packing=documents --parallelism.num_microbatches=1", 2,
                 "flexsp.enabled is true and data.packing is documents");
  folder_.write("plans.jsonl", "");
  expect_refused(one + "--flexsp.plan_file=plans.jsonl", 2,
                 "flexsp.enabled is true and flexsp.plan_file is plans.jsonl");
  expect_refused(one + "--parallelism.costs=", 2,
                 "parallelism.costs is not set: batches are planned by what sequences cost; "
                 "`sluice profile CONFIG --flexsp.enabled --out costs.json` writes a file");
  folder_.write("none.json",
                R"({"schema": 1, "stages": [{"F": [1], "I": [1], "W": [1], "layers": 4}]})");
  expect_refused(one + "--parallelism.costs=none.json", 2,
                 "parallelism.costs is 'none.json', which has no section flexsp");
  expect_refused(one + "--flexsp.strategy=fixed:3", 2, "flexsp.strategy is fixed:3: needs flex,");
  expect_refused(one + "--flexsp.strategy=fixed:8", 2,
                 "flexsp.strategy is fixed:8: groups can have 1, 2, 4 data ranks here");
  expect_refused(one + "--flexsp.min_degree=4 --flexsp.max_degree=2", 2,
                 "flexsp.max_degree is 2 and flexsp.min_degree is 4");
  expect_refused(one + "--parallelism.device_memory_mib=0.5", 2,
                 "parallelism.device_memory_mib is 0.50, and device 0 needs ");
  // Room for one or two tokens on each of four ranks.
  const std::string tight = one + "--parallelism.device_memory_mib=1.15";
  expect_refused(tight, 3, "the training data has a sequence of ");
  const Ran ran = train(tight);
  EXPECT_EQ(ran.code, 3) << ran.err;
  EXPECT_NE(ran.err.find("the training data has a sequence of "), std::string::npos) << ran.err;
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/checkpoints/LATEST"));
}

}  // namespace
}  // namespace sluice
