// sluice train on sequences of unequal lengths, as users meet it: what it says, refuses and writes,
// and that it resumes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "sluice/base/text.h"
#include "support/golden.h"
#include "support/tiny_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;

constexpr int kDocuments = 97;

std::string document(int n) {
  return fmt::format("line {} of a text that repeats itself", n % 7)
      .substr(0, static_cast<std::size_t>(1 + n * 37 % 31));
}

class TrainSequences : public test::TinyRun {
 protected:
  TrainSequences() {
    std::string lines;
    for (int n = 0; n < kDocuments; ++n)
      lines += fmt::format("{{\"text\": \"{}\"}}\n", document(n));
    folder_.write("corpus.jsonl", lines);
    std::string config = test::kTinyConfig;
    const std::string from = "path = \"corpus.txt\"\nformat = \"text\"\n";
    config.replace(config.find(from), from.size(),
                   "path = \"corpus.jsonl\"\npacking = \"sequences\"\n");
    folder_.write("run.toml", config);
  }

  std::vector<Json> rows() const {
    std::vector<Json> out;
    const std::string all = test::read_text(folder_.path() + "/metrics/metrics.jsonl");
    for (const std::string_view line : split(all, '\n'))
      if (!line.empty()) out.push_back(Json::parse(line));
    return out;
  }
  // Loss, norm and tokens of every step: with the same bits they are the same run.
  std::vector<std::string> steps() const {
    std::vector<std::string> out;
    for (const Json& row : rows())
      out.push_back(fmt::format("{} {} {} {}", row["step"].dump(), row["loss"].dump(),
                                row["grad_norm"].dump(), row["tokens"].dump()));
    return out;
  }
  std::string weights() const {
    const Ran ran = sluice("inspect checkpoints --format json");
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.code == 0 ? Json::parse(ran.out)["weights_sha256"] : "";
  }
  void expect_refused(const std::string& flags, int code, const std::string& part) const {
    SCOPED_TRACE(flags);
    const Ran ran = train(flags);
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_NE(ran.err.find(part), std::string::npos) << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/checkpoints"));
  }
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// 88 of 97 documents are for training, so 11 steps of 8 see each of them once.
TEST_F(TrainSequences, TokensAndWorkAreThoseOfTheRealLengths) {
  const Ran ran = train("--training.steps=11 --model.tied_embeddings=false");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_HAS(ran.err, "sluice: schedule: v-half, 4 microbatches of at most 64 tokens per step\n");
  EXPECT_HAS(ran.err,
             "sluice: data: corpus.jsonl, 88 training samples of 1 to 32 tokens, 9 held out\n");
  double tokens = 0, squares = 0, counted = 0, work = 0;
  for (int n = 0; n < 88; ++n) {
    const auto length = static_cast<double>(document(n).size() + 1);  // and the end of the document
    tokens += length;
    squares += length * length;
  }
  for (const Json& row : rows()) {
    counted += row["tokens"].get<double>();
    const auto seconds = row["step_time_s"].get<double>();
    work += row["tflops"].get<double>() * seconds * 2 * 1e12;
    EXPECT_NEAR(row["tps"].get<double>() * seconds * 2, row["tokens"].get<double>(), 1e-6);
    for (std::size_t rank = 0; rank < 2; ++rank)
      EXPECT_LT(row["peak_stash_bytes"][rank].get<std::int64_t>(),
                row["predicted_peak_stash_bytes"][rank].get<std::int64_t>());
  }
  EXPECT_EQ(counted, tokens);
  // Weights of 4 layers of 12 x 32 x 32 and of the head; attention by half of each length.
  const double flops =
      6 * tokens * (4 * 12 * 32 * 32 + 257 * 32) + 3 * 4 * (2 * 2 * 32) * squares / 2;
  EXPECT_NEAR(work, flops, 1e-9 * flops);
}

// Its microbatches are no other step's, so its ops take what they took, and keep their own bytes.
TEST_F(TrainSequences, TheLastStepIsPredictedFromItsOwnUnequalOps) {
  const Ran ran = train("--training.steps=3 --trace step.json");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_HAS(ran.err, "sluice: last step: ");
  std::map<std::string, double> seconds[2], bytes[2];  // measured and predicted
  const Json trace = Json::parse(test::read_text(folder_.path() + "/step.json"));
  for (const Json& event : trace["traceEvents"]) {
    const std::string name = event["name"], phase = event["ph"];
    const int run = event["pid"];
    if (phase == "X" && event["cat"] == "compute") seconds[run][name] = event["dur"];
    if (phase == "C")
      bytes[run][name] = std::max(bytes[run][name], event["args"]["bytes"].get<double>());
  }
  EXPECT_EQ(seconds[0].size(), 4U * 4U * 3U);  // F, I and W of four stages and microbatches
  ASSERT_EQ(seconds[0].size(), seconds[1].size());
  for (const auto& [name, taken] : seconds[0])
    EXPECT_NEAR(seconds[1].at(name), taken, 0.01) << name;
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_EQ(bytes[0].size(), 2U);
}

TEST_F(TrainSequences, AKilledRunResumesWithTheSameBits) {
  for (const char* flags : {"",
                            "--parallelism.data_parallel_shard_degree=2 "
                            "--parallelism.pipeline_parallel_schedule=zb-v",
                            "--parallelism.data_parallel_shard_degree=2 "
                            "--parallelism.sharding=parameters"}) {
    SCOPED_TRACE(flags);
    clear();
    const std::string constant_rate = fmt::format("{} --lr_scheduler.min_lr_ratio=1 ", flags);
    const int saved = killed_after_save(constant_rate + "--training.steps=1000000");
    ASSERT_GT(saved, 0);
    const std::string rest = constant_rate + fmt::format("--training.steps={}", saved + 14);
    const Ran resumed = train(rest);  // into the next epoch
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_HAS(resumed.err, fmt::format("resumed from step {}", saved));
    EXPECT_EQ(resumed.err.find("other settings"),
              resumed.err.find("other settings: training.steps"));
    const auto found = steps();
    const std::string bits = weights();
    clear();
    ASSERT_EQ(train(rest).code, 0);
    EXPECT_EQ(found, steps());
    EXPECT_EQ(bits, weights());
  }
}

TEST_F(TrainSequences, AResumeSaysThatDocumentsAreTakenDifferently) {
  ASSERT_EQ(train("--training.steps=4").code, 0);
  const Ran packed = train("--training.steps=5 --data.packing=documents");
  ASSERT_EQ(packed.code, 0) << packed.err;
  EXPECT_HAS(packed.err, "data.packing \"sequences\" -> \"documents\"");
  const Ran dropped = train("--training.steps=6 --data.overlong=drop");
  ASSERT_EQ(dropped.code, 0) << dropped.err;
  EXPECT_HAS(dropped.err, "data.overlong \"error\" -> \"drop\"");
}

TEST_F(TrainSequences, ValidationIsTheLossThatEvaluateGivesForTheHeldOutDocuments) {
  std::string lines;
  for (int n = 88; n < kDocuments; ++n)
    lines += fmt::format("{{\"text\": \"{}\"}}\n", document(n));
  folder_.write("held-out.jsonl", lines);
  ASSERT_EQ(sluice("data held-out.jsonl --out tokens").code, 0);
  for (const char* flags : {"",
                            "--training.global_batch_size=5 --parallelism.num_microbatches=2 "
                            "--parallelism.data_parallel_replicate_degree=2"}) {
    clear();
    const Ran ran = train(fmt::format("--training.steps=6 {}", flags));
    ASSERT_EQ(ran.code, 0) << ran.err;
    const Ran evaluated = sluice("evaluate checkpoints --tokens tokens --format json");
    ASSERT_EQ(evaluated.code, 0) << evaluated.err;
    EXPECT_NEAR(rows()[5]["validation_loss"].get<double>(),
                Json::parse(evaluated.out)["loss"].get<double>(), 1e-5);
  }
}

TEST_F(TrainSequences, LongDocumentsAreRefusedDroppedOrTruncated) {
  expect_refused("--training.sequence_length=31", 3,
                 "'corpus.jsonl' document 5 (they count from 0) has 32 tokens: "
                 "training.sequence_length is 31; raise "
                 "it, or set data.overlong to drop (3 of 88 documents would be left out) or to "
                 "truncate (they would keep their first 31 tokens)\n");
  const std::string flags = "--training.steps=1 --training.sequence_length=31 --data.overlong=";
  const Ran dropped = train(flags + "drop");
  ASSERT_EQ(dropped.code, 0) << dropped.err;
  EXPECT_HAS(dropped.err, "85 training samples of 1 to 31 tokens");
  EXPECT_HAS(dropped.err,
             "training data: 3 of 88 documents have more than 31 tokens and were dropped\n");
  clear();
  const Ran truncated = train(flags + "truncate");
  ASSERT_EQ(truncated.code, 0) << truncated.err;
  EXPECT_HAS(truncated.err, "88 training samples of 1 to 31 tokens");
  EXPECT_HAS(truncated.err, "documents have more than 31 tokens and were truncated\n");
}

TEST_F(TrainSequences, BadInputGetsOneClearLine) {
  expect_refused("--data.packing=stream --data.overlong=drop", 2,
                 "data.overlong is drop and data.packing is stream");
  expect_refused(
      "--parallelism.pipeline_parallel_schedule=seq1f1b --parallelism.slices=2", 2,
      "parallelism.slices is 2 and data.packing is sequences: slices are cut at the same tokens");
  expect_refused("--model.positions=16", 2, "longer than model.positions 16");
  expect_refused("--data.packing=squences", 2, "did you mean 'sequences'");
  expect_refused("--data.validation_fraction=0.001", 3,
                 "of which the validation data holds none: raise data.validation_fraction to at "
                 "least 0.011, or set validation.interval = 0");
}

TEST_F(TrainSequences, ADryRunSaysWhatTheDataNeeds) {
  const Ran ran = train("--dry-run");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_HAS(ran.out, "v-half on 2 ranks, 4 microbatches of at most 64 tokens, backend threads");
  EXPECT_HAS(ran.out, "elements that a rank sends per step at most (docs/parallelism.md)");
  EXPECT_HAS(ran.out, "how long a step takes depends on the lengths of its sequences\n");
  EXPECT_HAS(ran.out, "the first 12 batches of this data: at most ");
  const Ran truncated =
      train("--dry-run --training.sequence_length=20 --data.overlong=truncate --training.steps=1");
  ASSERT_EQ(truncated.code, 0) << truncated.err;
  EXPECT_HAS(truncated.out,
             "training data: 34 of 88 documents have more than 20 tokens and were "
             "truncated\n");
  EXPECT_HAS(truncated.out, "the first batch of this data: at most ");
  const Ran json = train("--dry-run --format json --cluster.peak_tflops=1");
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_TRUE(Json::parse(json.out)["step_s"].is_null());
}

TEST_F(TrainSequences, BertIsTrainedAndValidatedOnThemToo) {
  const Ran ran = train(
      "--model.shape=bert --model.vocab_size=258 --model.tied_embeddings=false --training.steps=6 "
      "--parallelism.deferred_validation=true");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_TRUE(rows()[5]["validation_loss"].is_number());
}

}  // namespace
}  // namespace sluice
