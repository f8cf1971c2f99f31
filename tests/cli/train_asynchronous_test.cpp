// sluice train with asynchronous schedules, as users meet them: killed, stopped, resumed,
// validated.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "sluice/base/text.h"
#include "support/golden.h"
#include "support/tiny_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;

// Four devices; the learning rate is constant, so that a short run is the beginning of a long one.
constexpr const char* kRun =
    "--parallelism.pipeline_parallel_degree=4 --parallelism.pipeline_parallel_schedule=amdp "
    "--training.global_batch_size=16 --parallelism.num_microbatches=8 "
    "--lr_scheduler.min_lr_ratio=1 ";

class TrainAsynchronous : public test::TinyRun {
 protected:
  std::vector<Json> rows() const {
    std::vector<Json> out;
    const std::string all = test::read_text(folder_.path() + "/metrics/metrics.jsonl");
    for (const std::string_view line : split(all, '\n'))
      if (!line.empty()) out.push_back(Json::parse(line));
    return out;
  }
  std::vector<double> losses() const {
    std::vector<double> out;
    for (const Json& row : rows())
      out.push_back(row["loss"].get<double>());
    return out;
  }
  std::string weights() const {
    const Ran ran = sluice("inspect checkpoints --format json");
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.code == 0 ? Json::parse(ran.out)["weights_sha256"] : "";
  }
  void expect_refused(const std::string& flags, const std::vector<std::string>& parts) const {
    SCOPED_TRACE(flags);
    for (const char* dry : {"--dry-run ", ""}) {
      const Ran ran = train(kRun + flags + dry);
      EXPECT_EQ(ran.code, 2) << ran.err;
      EXPECT_EQ(ran.out, "");
      EXPECT_EQ(split(ran.err, '\n').size(), 2U) << ran.err;
      for (const std::string& part : parts)
        EXPECT_NE(ran.err.find(part), std::string::npos) << ran.err;
    }
  }
};

const std::vector<std::string> kWays = {
    "--asynchronous.order=A ",
    "--asynchronous.order=R --asynchronous.weights=stash ",
    "--asynchronous.order=T --parallelism.data_parallel_shard_degree=2 ",
    "--parallelism.pipeline_parallel_schedule=async-1f1b --parallelism.num_microbatches=2 ",
    "--parallelism.pipeline_parallel_schedule=pipedream --parallelism.num_microbatches=1 ",
    "--parallelism.pipeline_parallel_schedule=pipedream-2bw --parallelism.num_microbatches=4 ",
    "--parallelism.pipeline_parallel_schedule=xpipe --parallelism.num_microbatches=4 ",
};
// One device: no forward runs ahead of an update, and pipedream-2bw still needs older weights.
const std::vector<std::string> kAlone = {
    "--parallelism.pipeline_parallel_schedule=async-1f1b --parallelism.num_microbatches=2 ",
    "--parallelism.pipeline_parallel_schedule=pipedream-2bw --parallelism.num_microbatches=2 ",
    "--parallelism.pipeline_parallel_schedule=pipedream --parallelism.num_microbatches=2 ",
};

TEST_F(TrainAsynchronous, AKilledRunResumesWithTheSameBits) {
  for (const std::string& way : kWays) {
    SCOPED_TRACE(way);
    clear();
    const std::string flags = kRun + way + "--validation.interval=0 ";
    const int saved = killed_after_save(flags + "--training.steps=1000000");
    ASSERT_GT(saved, 0);
    const std::string rest = flags + fmt::format("--training.steps={}", saved + 4);
    const Ran resumed = train(rest);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_NE(resumed.err.find(fmt::format("resumed from step {}", saved)), std::string::npos)
        << resumed.err;
    EXPECT_EQ(resumed.err.find("begins them with"), std::string::npos) << resumed.err;
    const std::string bits = weights();
    const std::vector<double> found = losses();
    clear();
    ASSERT_EQ(train(rest).code, 0);
    EXPECT_EQ(weights(), bits);
    EXPECT_EQ(losses(), found);
  }
}

TEST_F(TrainAsynchronous, AStoppedRunSavesAtOnceAndResumesWithTheSameBits) {
  for (const std::size_t way : {0U, 4U, 5U, 6U}) {
    SCOPED_TRACE(kWays[way]);
    clear();
    const std::string flags =
        kRun + kWays[way] + "--checkpoint.interval=0 --validation.interval=0 ";
    const Ran stopped = test::run_shell(
        fmt::format("taskset -c 0 '{}' train run.toml {} --training.steps=1000000 >out 2>err & "
                    "pid=$!; while [ ! -s metrics/metrics.jsonl ] && kill -0 $pid; do sleep 0.01; "
                    "done; kill -TERM $pid; wait $pid",
                    SLUICE_ENGINE_BINARY, flags),
        folder_.path());
    ASSERT_EQ(stopped.code, 143) << test::read_text(folder_.path() + "/err");
    const std::string latest = test::read_text(folder_.path() + "/checkpoints/LATEST");
    const int saved = std::stoi(latest.substr(latest.find('-') + 1));
    const std::string rest = flags + fmt::format("--training.steps={}", saved + 4);
    ASSERT_EQ(train(rest).code, 0);
    const std::string bits = weights();
    clear();
    ASSERT_EQ(train(rest).code, 0);
    EXPECT_EQ(weights(), bits);
  }
}

// Twice: what a resumed run saves at once holds older weights that it did not make itself.
TEST_F(TrainAsynchronous, ARunThatEndedGoesOnWithTheSameBits) {
  std::vector<std::string> ways = {
      kWays[0], kWays[5], kWays[6],
      "--parallelism.pipeline_parallel_schedule=async-1f1b --parallelism.num_microbatches=1 "};
  for (const std::string& alone : kAlone)
    ways.push_back("--parallelism.pipeline_parallel_degree=1 " + alone);
  for (const std::string& way : ways) {
    SCOPED_TRACE(way);
    clear();
    const std::string flags = kRun + way + "--validation.interval=0 --checkpoint.interval=0 ";
    for (const int steps : {5, 6, 9}) {
      const Ran ran = train(flags + fmt::format("--training.steps={}", steps));
      ASSERT_EQ(ran.code, 0) << ran.err;
      EXPECT_EQ(ran.err.find("begins them with"), std::string::npos) << ran.err;
    }
    const std::string bits = weights();
    clear();
    ASSERT_EQ(train(flags + "--training.steps=9").code, 0);
    EXPECT_EQ(weights(), bits);
  }
}

TEST_F(TrainAsynchronous, ValidationDisturbsNothing) {
  for (const std::string& way : {kWays[0], kWays[3]}) {
    clear();
    ASSERT_EQ(train(kRun + way + "--validation.interval=0").code, 0);
    const std::string bits = weights();
    clear();
    const Ran ran = train(kRun + way + "--validation.interval=2");
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(weights(), bits);
  }
}

TEST_F(TrainAsynchronous, MetricsSayHowOldTheWeightsWere) {
  ASSERT_EQ(train(std::string(kRun) + "--asynchronous.order=A").code, 0);
  const std::vector<Json> all = rows();
  ASSERT_EQ(all.size(), 12U);
  EXPECT_EQ(all[0]["mismatch"], Json({32}));
  EXPECT_EQ(all[0]["max_delay"], 0);
  for (std::size_t n = 1; n < all.size(); ++n) {
    EXPECT_EQ(all[n]["mismatch"], Json({20, 12}));  // (u - 1) / M of 32
    EXPECT_EQ(all[n]["max_delay"], 1);
    EXPECT_EQ(all[n]["gradients_counted"], 32);
  }
  clear();
  ASSERT_EQ(train(std::string(kRun) + "--asynchronous.flush").code, 0);
  EXPECT_FALSE(rows().front().contains("mismatch"));
}

TEST_F(TrainAsynchronous, ACheckpointOfASynchronousRunGoesOn) {
  ASSERT_EQ(train(std::string(kRun) + "--asynchronous.flush --training.steps=4").code, 0);
  const Ran ran = train(std::string(kRun) + "--training.steps=8");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("begins them with the weights of the checkpoint"), std::string::npos)
      << ran.err;
  // Also where all of a step uses older weights, or predicted ones.
  for (const std::size_t way : {5U, 6U}) {
    const Ran other =
        train(kRun + kWays[way] + "--training.steps=6 --checkpoint.load=" +
              "checkpoints/step-00000004 --checkpoint.folder=other" + std::to_string(way));
    EXPECT_EQ(other.code, 0) << other.err;
    EXPECT_NE(other.err.find("the checkpoint holds none, so this run begins"), std::string::npos)
        << other.err;
  }
  // And the other way round.
  const Ran back = train(std::string(kRun) + "--asynchronous.flush --training.steps=10");
  EXPECT_EQ(back.code, 0) << back.err;
}

TEST_F(TrainAsynchronous, ACheckpointWithTooFewOlderWeightsSaysSo) {
  ASSERT_EQ(train(std::string(kRun) + "--training.steps=3").code, 0);
  const Ran ran = train(kRun + kWays[3] + "--parallelism.num_microbatches=1 --training.steps=4");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("async-1f1b begins steps with the weights before the last 3 updates, and "
                         "the checkpoint holds those before the last update, so this run begins"),
            std::string::npos)
      << ran.err;
}

TEST_F(TrainAsynchronous, OlderWeightsAreNoStatesOfTheOptimizer) {
  ASSERT_EQ(train(std::string(kRun) + "--training.steps=3").code, 0);
  const Ran ran = sluice("inspect checkpoints --format json");
  const Json held = Json::parse(ran.out);
  EXPECT_EQ(held["states"].size(), 2 * held["tensors"].size());
  EXPECT_EQ(held["older_weights"].size(), held["tensors"].size());
  EXPECT_NE(sluice("inspect checkpoints").out.find("136 optimizer states, 0.46 MiB; 68 older"),
            std::string::npos);
}

TEST_F(TrainAsynchronous, AnotherOptimizerSaysWhatItDropsAndWhatItSetsToZero) {
  const std::string plain = kRun + kWays[0] + "--validation.interval=0 ";
  const struct {
    const char *before, *after, *said;
  } rows[] = {
      {"sgd", "adamw", "set to zero: first_moment of 68 weights, second_moment of 68 weights\n"},
      {"adamw", "sgd", "dropped: first_moment of 68 weights, second_moment of 68 weights\n"},
      {"adamw", "nadam", "nadam goes on with the states of adamw\n"},
      {"nadam", "adamw", "adamw goes on with the states of nadam\n"},
      {"muon", "adamw",
       "set to zero: first_moment of 24 weights, second_moment of 24 weights; dropped: momentum "
       "of 24 weights\n"},
      {"adamw", "muon",
       "set to zero: momentum of 24 weights; dropped: first_moment of 24 weights, second_moment "
       "of 24 weights\n"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(fmt::format("{} to {}", row.before, row.after));
    clear();
    ASSERT_EQ(train(plain + "--training.steps=2 --optimizer.name=" + row.before).code, 0);
    const std::string rest = plain + "--training.steps=3 --optimizer.name=" + row.after;
    const std::string said =
        fmt::format("optimizer.name was {} and is {}: {}", row.before, row.after, row.said);
    const Ran dry = train(rest + " --dry-run");
    EXPECT_NE((dry.out + dry.err).find(said), std::string::npos) << dry.out << dry.err;
    const Ran ran = train(rest);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_NE(ran.err.find(said), std::string::npos) << ran.err;
    EXPECT_NE(ran.err.find("resumed from step 2"), std::string::npos) << ran.err;
  }
}

// The keys that a file of several windows leaves open do what they do with a named schedule.
TEST_F(TrainAsynchronous, AFileOfSeveralWindowsReadsItsOwnKeys) {
  for (const char* windows : {"1", "5"})
    ASSERT_EQ(sluice(fmt::format("schedule amdp -d 4 -m 8 --windows {} --order A --format csv "
                                 "--out {}.csv",
                                 windows, windows))
                  .code,
              0);
  const std::string csv = kRun + std::string("--parallelism.pipeline_parallel_schedule_csv=5.csv ");
  const auto memory = [&](const std::string& flags) {
    const Ran ran = train(flags + "--dry-run");
    EXPECT_EQ(ran.code, 0) << ran.err;
    const auto begin = ran.out.find("rank  stages"), end = ran.out.find("elements that");
    return ran.out.substr(begin, end - begin);
  };
  const std::string named = std::string(kRun) + "--asynchronous.order=A ";
  EXPECT_EQ(memory(csv), memory(named));
  const std::string replicated = "--asynchronous.states=replicated ";
  EXPECT_EQ(memory(csv + replicated), memory(named + replicated));
  EXPECT_NE(memory(csv), memory(csv + replicated));
  memory(csv + "--asynchronous.max_mismatch=1 --asynchronous.max_delay=1 ");
  EXPECT_EQ(train(csv + "--asynchronous.max_mismatch=0 --dry-run").code, 1);
  ASSERT_EQ(train(csv).code, 0);
  const std::string bits = weights();
  clear();
  ASSERT_EQ(train(named).code, 0);
  EXPECT_EQ(weights(), bits);
  const std::string key = "--parallelism.pipeline_parallel_schedule_csv=5.csv ";
  expect_refused(key + "--asynchronous.flush ", {"asynchronous.flush is true: in a CSV updates"});
  expect_refused(key + "--asynchronous.weights=stash ",
                 {"asynchronous.weights is \"stash\": the CSV says in its first line"});
  expect_refused(key + "--asynchronous.order=A ", {"the CSV's order is fixed"});
  expect_refused(key + "--parallelism.fuse_backward ", {"schedule --backward fused"});
  expect_refused(key + "--parallelism.deferred_validation ", {"could not be taken back"});
  expect_refused(key + "--data.packing=sequences ", {"use stream or documents\n"});
  expect_refused("--parallelism.pipeline_parallel_schedule_csv=1.csv " + replicated,
                 {"asynchronous.states is \"replicated\", and amdp has one window"});
}

// A file may say any weights: what they need is known when it is read.
TEST_F(TrainAsynchronous, AFileOfPredictedWeightsNeedsWhatTheyNeed) {
  const auto written = [&](const char* flags) {
    const Ran ran = sluice(fmt::format("schedule {} --format csv --out own.csv", flags));
    ASSERT_EQ(ran.code, 0) << ran.err;
  };
  const std::string csv = "--parallelism.pipeline_parallel_schedule_csv=own.csv ";
  written("xpipe -d 4 -m 4 --windows 6");
  const std::string four = csv + "--parallelism.num_microbatches=4 ";
  expect_refused(four + "--optimizer.name=sgd ", {"optimizer.name is sgd: xpipe predicts"});
  expect_refused(four + "--parallelism.data_parallel_shard_degree=2 ",
                 {"data_parallel_shard_degree is 2: xpipe predicts whole weights"});
  written("async-1f1b -d 4 -m 1 --windows 12 --weights stash");
  std::string text = test::read_text(folder_.path() + "/own.csv");
  text.replace(text.find("stash"), std::string("stash").size(), "predicted");
  folder_.write("own.csv", text);
  expect_refused(csv + "--parallelism.num_microbatches=1 ",
                 {"async-1f1b begins a window 3 updates before its own, and weights are predicted "
                  "by one update only"});
}

TEST_F(TrainAsynchronous, TheTableOfMethodsSaysWhatItCannotShow) {
  const struct {
    const char *flags, *said;
  } rows[] = {
      {"--methods", "--methods is given without --dry-run"},
      {"--methods --dry-run --print-config", "--methods and --print-config are both given"},
      {"--methods --dry-run --parallelism.pipeline_parallel_schedule=seq1f1b "
       "--parallelism.slices=2",
       "no method of updating takes this run: 1f1b: parallelism.slices is 2"},
  };
  for (const auto& row : rows) {
    const Ran ran = train(row.flags);
    EXPECT_EQ(ran.code, 2) << row.flags;
    EXPECT_EQ(ran.out, "") << row.flags;
    EXPECT_NE(ran.err.find(row.said), std::string::npos) << ran.err;
  }
  const Ran ran = sluice("schedule 1f1b -d 2 -m 2 --update-time 3");
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.err, "sluice: --update-time is 3: 1f1b has no UPDATE; leave the flag out\n");
}

TEST_F(TrainAsynchronous, TheDryRunOfPipedreamSaysByWhichNormItClips) {
  const Ran ran = train(kRun + kWays[4] + "--dry-run");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE((ran.out + ran.err)
                .find("pipedream updates each stage by itself: training.max_norm = 1 clips by the "
                      "gradient norm of the step before, and the first step not at all\n"),
            std::string::npos)
      << ran.out << ran.err;
  const Ran unclipped = train(kRun + kWays[4] + "--dry-run --training.max_norm=0");
  EXPECT_EQ((unclipped.out + unclipped.err).find("by itself"), std::string::npos);
}

TEST_F(TrainAsynchronous, MuonNeedsWholeMatricesAndSaysWhatItSends) {
  const std::string mesh =
      "--optimizer.name=muon --parallelism.data_parallel_shard_degree=2 "
      "--parallelism.tensor_parallel_degree=2 --model.vocab_size=258 ";
  const Ran refused = train(mesh + "--parallelism.sharding=parameters");
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.err,
            "sluice: parallelism.sharding is parameters: it divides matrices by rows, and "
            "optimizer.name = muon needs whole ones; use parallelism.sharding = states\n");
  const Ran text = train(mesh + "--dry-run");
  const std::size_t header = text.out.find("elements that a rank sends per step");
  ASSERT_NE(header, std::string::npos) << text.out;
  EXPECT_NE(text.out.find(" optimizer", header), std::string::npos) << text.out;
  const Ran adamw = train(mesh + "--optimizer.name=adamw --dry-run");
  EXPECT_EQ(adamw.out.find(" optimizer", adamw.out.find("elements that")), std::string::npos);
}

TEST_F(TrainAsynchronous, MoreMicrobatchesThanHaveNumbersAreRefused) {
  expect_refused("--training.steps=268435456 ",
                 {"training.steps is 268435456: amdp numbers its microbatches through, 8 in each "
                  "step, and the largest number is 2147483647; take at most 268435455 steps"});
}

TEST_F(TrainAsynchronous, WhatDoesNotFitIsRefusedInOneLine) {
  expect_refused("--asynchronous.order=A --parallelism.num_microbatches=2 ",
                 {"parallelism.num_microbatches is 2", "a multiple of 4"});
  expect_refused(
      "--asynchronous.order=T --parallelism.pipeline_parallel_degree=3 "
      "--model.layers=3 --training.global_batch_size=8 ",
      {"parallelism.pipeline_parallel_degree is 3: order T needs an even number"});
  expect_refused("--parallelism.pipeline_parallel_degree=1 ",
                 {"parallelism.pipeline_parallel_degree is 1: amdp needs at least 2"});
  expect_refused("--parallelism.deferred_validation ", {"deferred_validation is true", "amdp"});
  expect_refused("--parallelism.deferred_validation --asynchronous.flush ",
                 {"deferred_validation is true with asynchronous.flush: the owner of a stage"});
  expect_refused("--parallelism.fuse_backward ", {"asynchronous.backward = fused"});
  expect_refused("--asynchronous.pipes=2 --asynchronous.order=A ",
                 {"asynchronous.pipes is 2", "order frozen takes any"});
  expect_refused("--parallelism.slices=2 ", {"parallelism.slices is 2: amdp does not cut"});
  const std::string xpipe = kWays[6];
  expect_refused(xpipe + "--optimizer.name=sgd ",
                 {"optimizer.name is sgd: xpipe predicts weights from two moments"});
  expect_refused(xpipe + "--optimizer.name=muon ", {"optimizer.name is muon: xpipe predicts"});
  expect_refused(xpipe + "--parallelism.data_parallel_shard_degree=2 ",
                 {"data_parallel_shard_degree is 2: xpipe predicts whole weights"});
  expect_refused(xpipe + "--parallelism.num_microbatches=2 ",
                 {"parallelism.num_microbatches is 2", "xpipe"});
  const Ran ran = train(std::string(kRun) + "--asynchronous.max_mismatch=0 --dry-run");
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_NE(ran.err.find("the mismatch may be 0 at most"), std::string::npos) << ran.err;
}

}  // namespace
}  // namespace sluice
