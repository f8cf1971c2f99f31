// sluice train as users meet it: the real program, real training, kills and resumes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "sluice/base/text.h"
#include "support/golden.h"
#include "support/run_sluice.h"
#include "support/tiny_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;
using test::run_shell;
using test::TemporaryFolder;

class Train : public test::TinyRun {
 protected:
  // Loss of every step, as written: equal text is equal bits.
  std::map<int, std::string> losses(const std::string& folder = "metrics") const {
    std::map<int, std::string> out;
    const std::string text = test::read_text(folder_.path() + "/" + folder + "/metrics.jsonl");
    for (const std::string_view line : split(text, '\n'))
      if (!line.empty()) {
        const Json row = Json::parse(line);
        out[row["step"]] = row["loss"].dump();
      }
    return out;
  }
};

TEST_F(Train, LearnsAndKeepsToItsPrediction) {
  const Ran ran = train();
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("step: 12  loss: "), std::string::npos) << ran.out;
  const std::string text = test::read_text(folder_.path() + "/metrics/metrics.jsonl");
  std::vector<Json> rows;
  for (const std::string_view line : split(text, '\n'))
    if (!line.empty()) rows.push_back(Json::parse(line));
  ASSERT_EQ(rows.size(), 12u);
  EXPECT_LT(rows.back()["loss"].get<double>(), 0.8 * rows.front()["loss"].get<double>());
  for (const Json& row : rows)
    EXPECT_EQ(row["peak_stash_bytes"], row["predicted_peak_stash_bytes"]);
  EXPECT_TRUE(rows[5].contains("validation_loss"));
  EXPECT_FALSE(rows[4].contains("validation_loss"));
}

TEST_F(Train, SlicesKeepToTheirPredictionToo) {
  for (const char* schedule : {"seq1f1b", "zb-v", "seq-zb"}) {
    clear();
    const Ran ran =
        train(fmt::format("--parallelism.pipeline_parallel_schedule={} "
                          "--parallelism.slices=4 --training.steps=2",
                          schedule));
    ASSERT_EQ(ran.code, 0) << ran.err;
    const std::string text = test::read_text(folder_.path() + "/metrics/metrics.jsonl");
    const Json row = Json::parse(text.substr(0, text.find('\n')));
    EXPECT_EQ(row["peak_stash_bytes"], row["predicted_peak_stash_bytes"]) << schedule;
  }
}

TEST_F(Train, TheScheduleChangesNoBit) {
  ASSERT_EQ(train().code, 0);
  const auto reference = losses();
  for (const char* flags : {"--parallelism.pipeline_parallel_schedule=1f1b",
                            "--parallelism.pipeline_parallel_schedule=zb-v",
                            "--parallelism.pipeline_parallel_schedule=1f1b "
                            "--parallelism.pipeline_parallel_degree=1"}) {
    clear();
    const Ran ran = train(fmt::format("{} --recompute.level=full", flags));
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(losses(), reference) << flags;
  }
}

// The learning rate is constant, so that a short run is the beginning of a long one. The run that
// is killed is too long to end by itself.
TEST_F(Train, AKilledRunResumesWithTheSameBits) {
  const std::string constant_rate = "--lr_scheduler.min_lr_ratio=1 ";
  const int saved = killed_after_save(constant_rate + "--training.steps=1000000");
  ASSERT_GT(saved, 0);
  const std::string flags = constant_rate + fmt::format("--training.steps={}", saved + 4);
  const Ran resumed = train(flags);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find(fmt::format("resumed from step {}", saved)), std::string::npos)
      << resumed.err;
  const auto found = losses();
  EXPECT_EQ(found.size(), static_cast<std::size_t>(saved + 4));
  clear();
  ASSERT_EQ(train(flags).code, 0);
  EXPECT_EQ(found, losses());
}

TEST_F(Train, BadInputGetsOneClearLine) {
  const auto expect = [&](const std::string& flags, int code, const std::string& word) {
    SCOPED_TRACE(flags);
    const Ran ran = train(flags);
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_NE(ran.err.find(word), std::string::npos) << ran.err;
    EXPECT_EQ(ran.out, "");
  };
  expect("--model.layrs=4", 2, "model.layers");
  expect("--model.layers=four", 2, "four");
  expect("--model.layers=3", 2, "model.layers is 3");
  expect("--model.positions=16", 2, "16");
  expect("--model.dropout=0.1", 2, "dropout");
  expect("--model.shape=bert", 2, "use 258");
  expect("--model.shape=bert --model.vocab_size=258 --parallelism.slices=4", 2, "both directions");
  expect("--comm.backend=mpi", 2, "mpirun -n 2");
  expect("--comm.backend=nccl", 2, "cluster.device = cuda");
  expect("--parallelism.pipeline_parallel_schedule=v-hlaf", 2, "v-half");
  // With and without a GPU: none has so many.
  expect("--cluster.device=cuda --cluster.partitions=2 --cluster.sms_per_partition=1024", 2,
         "cluster.");
  expect("--data.path=nowhere.txt", 2, "data.path is 'nowhere.txt': no such file or folder");
  expect("--data.packing=files", 2, "stream, documents");
  expect("--data.path=nowhere --data.format=megatron", 2, "nowhere");
  ASSERT_EQ(train("--training.steps=4").code, 0);
  // One flipped byte in a shard.
  const std::string shard = folder_.path() + "/checkpoints/step-00000004/rank-00001.safetensors";
  std::string bytes = test::read_text(shard);
  bytes[bytes.size() - 1] = static_cast<char>(bytes.back() ^ 1);
  folder_.write("checkpoints/step-00000004/rank-00001.safetensors", bytes);
  const Ran ran = train();
  EXPECT_EQ(ran.code, 3) << ran.err;
  EXPECT_NE(ran.err.find("rank-00001.safetensors"), std::string::npos) << ran.err;
}

TEST_F(Train, DryRunAndPrintConfigTrainNothing) {
  const Ran dry = train("--dry-run");
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_NE(dry.out.find("stash"), std::string::npos);
  const Ran printed = train("--print-config --model.layers=8");
  EXPECT_EQ(printed.code, 0);
  EXPECT_NE(printed.out.find("--model.layers"), std::string::npos) << printed.out;
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/checkpoints"));
}

TEST_F(Train, TheTraceShowsTheMeasuredStepBesideThePredicted) {
  const Ran ran = train("--training.steps=2 --trace trace.json");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("sluice: last step: "), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find(" s measured, "), std::string::npos) << ran.err;
  const Json trace = Json::parse(test::read_text(folder_.path() + "/trace.json"));
  std::map<int, std::string> processes;
  std::map<int, int> spans;
  std::map<int, double> peaks;
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") processes[event["pid"]] = event["args"]["name"];
    if (event["ph"] == "X" && event["cat"] == "compute") ++spans[event["pid"]];
    if (event["ph"] == "C")
      peaks[event["pid"]] = std::max(peaks[event["pid"]], event["args"]["bytes"].get<double>());
  }
  EXPECT_EQ(processes, (std::map<int, std::string>{{0, "measured"}, {1, "predicted"}}));
  // Two ranks, two stages each, four microbatches, F I W.
  EXPECT_EQ(spans, (std::map<int, int>{{0, 2 * 2 * 4 * 3}, {1, 2 * 2 * 4 * 3}}));
  EXPECT_GT(peaks[0], 0);
  EXPECT_EQ(peaks[0], peaks[1]);
  for (const char* picture : {"trace.svg", "trace.html"}) {
    clear();
    ASSERT_EQ(train(fmt::format("--training.steps=1 --trace {}", picture)).code, 0);
    const std::string text = test::read_text(folder_.path() + "/" + picture);
    EXPECT_NE(text.find("measured 1"), std::string::npos);
    EXPECT_NE(text.find("predicted 1"), std::string::npos);
  }
  // Nothing is left to do, so there is nothing to show.
  const Ran again = train("--training.steps=1 --trace again.svg");
  EXPECT_EQ(again.code, 2) << again.err;
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/again.svg"));
}

TEST_F(Train, AProfileIsACostsFileForTheSameSchedule) {
  // It needs no data.
  const auto profile = [&](const std::string& flags) {
    return run_shell(fmt::format("taskset -c 0 '{}' profile run.toml --data.path=nowhere {}",
                                 SLUICE_ENGINE_BINARY, flags),
                     folder_.path());
  };
  for (const auto& [flags, schedule] :
       {std::pair{"", "v-half --devices 2 --microbatches 4"},
        std::pair{"--parallelism.pipeline_parallel_schedule=seq1f1b --parallelism.slices=2",
                  "seq1f1b --devices 2 --microbatches 4 --slices 2"}}) {
    SCOPED_TRACE(schedule);
    const Ran ran = profile(fmt::format("{} --out costs.json", flags));
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_NE(ran.out.find("simulated step of "), std::string::npos) << ran.out;
    const Ran priced = test::run_sluice(
        fmt::format("schedule {} --costs costs.json --format json", schedule), folder_.path());
    ASSERT_EQ(priced.code, 0) << priced.err;
    // Memory to the byte, as training will find it.
    const Ran trained = train(fmt::format("{} --training.steps=1", flags));
    ASSERT_EQ(trained.code, 0) << trained.err;
    const std::string text = test::read_text(folder_.path() + "/metrics/metrics.jsonl");
    const Json row = Json::parse(text.substr(0, text.find('\n')));
    const Json result = Json::parse(priced.out);
    EXPECT_GT(result["makespan"].get<double>(), 0);
    EXPECT_EQ(result["peak_bytes"], row["peak_stash_bytes"]);
    clear();
  }
  const Ran unknown = profile("--model.layrs=4");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("model.layers"), std::string::npos) << unknown.err;
}

// JSONL with documents of all lengths, some of one letter and the end.
TEST_F(Train, PackedDocumentsTrainThroughAnySchedule) {
  std::string lines;
  for (std::size_t n = 0; n < 300; ++n)
    lines += fmt::format("{{\"text\": \"{}\"}}\n",
                         std::string(1 + n * 7 % 40, static_cast<char>('a' + n % 3)));
  folder_.write("documents.jsonl", lines);
  const std::string data = "--data.path=documents.jsonl --data.format=jsonl --training.steps=6 ";
  ASSERT_EQ(train(data).code, 0);
  const auto stream = losses();
  clear();
  ASSERT_EQ(train(data + "--data.packing=documents").code, 0);
  const auto reference = losses();
  EXPECT_NE(reference, stream);
  for (const char* flags : {"--parallelism.pipeline_parallel_schedule=1f1b",
                            "--parallelism.pipeline_parallel_schedule=zb-v"}) {
    clear();
    const Ran ran = train(fmt::format("{} --data.packing=documents {}", data, flags));
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(losses(), reference) << flags;
  }
  clear();
  const Ran sliced = train(data +
                           "--data.packing=documents --parallelism.slices=4 "
                           "--parallelism.pipeline_parallel_schedule=seq1f1b");
  ASSERT_EQ(sliced.code, 0) << sliced.err;
  const std::string text = test::read_text(folder_.path() + "/metrics/metrics.jsonl");
  const Json row = Json::parse(text.substr(0, text.find('\n')));
  EXPECT_NEAR(row["loss"].get<double>(), std::stod(reference.at(1)), 1e-5);
  EXPECT_EQ(row["tokens"], 8 * 32);
}

TEST_F(Train, TheEncoderLearnsFromMaskedTokens) {
  const std::string bert = "--model.shape=bert --model.vocab_size=258 ";
  const Ran ran = train(bert);
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto reference = losses();
  EXPECT_LT(std::stod(reference.at(12)), 0.8 * std::stod(reference.at(1)));
  // The same tokens are hidden whatever the schedule, and after a resume.
  clear();
  ASSERT_EQ(train(bert + "--parallelism.pipeline_parallel_schedule=1f1b --training.steps=12").code,
            0);
  EXPECT_EQ(losses(), reference);
  std::filesystem::remove_all(folder_.path() + "/checkpoints/step-00000012");
  folder_.write("checkpoints/LATEST", "step-00000008\n");
  const Ran resumed = train(bert);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("resumed from step 8"), std::string::npos) << resumed.err;
  EXPECT_EQ(losses(), reference);
  clear();
  const Ran packed = train(bert + "--data.packing=documents --training.steps=2");
  EXPECT_EQ(packed.code, 0) << packed.err;
}

TEST_F(Train, TheLastStepIsValidatedToo) {
  ASSERT_EQ(train("--training.steps=8 --checkpoint.folder=").code, 0);
  const std::string text = test::read_text(folder_.path() + "/metrics/metrics.jsonl");
  int validated = 0;
  for (const std::string_view line : split(text, '\n'))
    validated += line.find("validation_loss") != line.npos;
  EXPECT_EQ(validated, 2);  // steps 6 and 8
}

// The quickstart as it stands, on its real text, for its first steps.
TEST(Quickstart, LearnsFromTheRealCorpus) {
  const TemporaryFolder folder;
  const Ran corpus =
      run_shell(fmt::format("'{}/tools/corpus' --no-install quickstart/kjv.txt", SLUICE_SOURCE_DIR),
                folder.path());
  if (corpus.code == 2) GTEST_SKIP() << corpus.err;
  ASSERT_EQ(corpus.code, 0) << corpus.err;
  const Ran ran =
      run_shell(fmt::format("'{}' train '{}/examples/quickstart.toml' --training.steps=40 "
                            "--lr_scheduler.warmup_steps=20 --trace quickstart.svg",
                            SLUICE_ENGINE_BINARY, SLUICE_SOURCE_DIR),
                folder.path());
  ASSERT_EQ(ran.code, 0) << ran.err;
  Json last;
  const std::string text = test::read_text(folder.path() + "/quickstart/metrics/metrics.jsonl");
  for (const std::string_view line : split(text, '\n'))
    if (!line.empty()) last = Json::parse(line);
  EXPECT_EQ(last["step"], 40);
  EXPECT_LT(last["validation_loss"].get<double>(), 2.6);  // 5.5 at the start
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/quickstart/checkpoints/LATEST"));
  EXPECT_NE(test::read_text(folder.path() + "/quickstart.svg").find("<svg"), std::string::npos);
}

TEST(Examples, ALayerOfOnesOwnLearns) {
  const Ran ran = run_shell(fmt::format("'{}'", SLUICE_OWN_LAYER));
  ASSERT_EQ(ran.code, 0) << ran.err;
  std::vector<double> losses;
  for (const std::string_view line : split(ran.out, '\n'))
    if (const auto at = line.find("loss "); at != std::string_view::npos)
      losses.push_back(std::stod(std::string(line.substr(at + 5))));
  ASSERT_EQ(losses.size(), 5u) << ran.out;  // steps 1, 10, 20, 30 and 40
  EXPECT_NEAR(losses.front(), std::log(27), 0.5);
  EXPECT_LT(losses.back(), 0.5 * losses.front()) << ran.out;
}

}  // namespace
}  // namespace sluice
