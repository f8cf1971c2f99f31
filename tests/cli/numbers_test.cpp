// The numbers that sluice train and evaluate report: losses that are not finite, validation, MFU,
// and what a run says about itself at its start.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "sluice/base/text.h"
#include "sluice/runtime/files/safetensors.h"
#include "support/golden.h"
#include "support/hf_model.h"
#include "support/tiny_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Numbers : public test::TinyRun {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::vector<Json> rows() const {
    std::vector<Json> out;
    const std::string text = test::read_text(path("metrics/metrics.jsonl"));
    for (const std::string_view line : split(text, '\n'))
      if (!line.empty()) out.push_back(Json::parse(line));
    return out;
  }
  void write_tokens(const std::string& name, const std::vector<int>& tokens) const {
    std::string lines;
    for (const int token : tokens)
      lines += fmt::format("{}\n", token);
    folder_.write(name, lines);
  }

  // A checkpoint "in" of a tiny Llama of bytes in which the embedding of 'Z' is NaN.
  void import_with_a_nan() const {
    test::HfTensors tensors = test::llama_tensors();
    for (auto& [name, shape] : tensors)
      if (shape[0] == 19) shape[0] = 257;
    std::string config = test::kTinyLlama;
    config.replace(config.find("19"), 2, "257");
    test::write_hf_folder(path("llama"), config, tensors);
    const std::string file = path("llama/model.safetensors");
    const TensorInfo table = *SafetensorsFile(file).find("model.embed_tokens.weight");
    std::fstream patched(file, std::ios::in | std::ios::out | std::ios::binary);
    patched.seekp(static_cast<std::streamoff>(table.offset + 'Z' * 16 * sizeof(float)));
    patched.write(reinterpret_cast<const char*>(&kNan), sizeof kNan);
    patched.close();
    ASSERT_EQ(sluice("import llama --out in").code, 0);
  }

  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
};

TEST_F(Numbers, EvaluateCountsEveryLossAndReportsThoseThatAreNotFinite) {
  import_with_a_nan();
  std::vector<int> tokens(20, 'a');
  tokens[12] = 'Z';
  write_tokens("tokens", tokens);
  // In two parts, of which the second has the NaN and the first knows nothing of it.
  const std::string evaluate = "evaluate in --tokens tokens --sequence-length 10";
  const Ran ran = sluice(evaluate + " --per-token --format json");
  EXPECT_EQ(ran.code, 17) << ran.err;
  EXPECT_TRUE(has(ran.err, "9 of 19 tokens have a loss that is not finite")) << ran.err;
  const Json result = Json::parse(ran.out);
  EXPECT_EQ(result["tokens"], 19);
  EXPECT_EQ(result["non_finite"], 9);
  EXPECT_EQ(result["loss"], "nan");
  EXPECT_TRUE(result["per_token"][10].is_number());
  EXPECT_EQ(result["per_token"][11], "nan");
  const Ran text = sluice(evaluate);
  EXPECT_EQ(text.code, 17);
  EXPECT_TRUE(text.out.starts_with("loss nan nats per token over 19 tokens")) << text.out;
  // Without the guilty token all is well.
  tokens[12] = 'b';
  write_tokens("tokens", tokens);
  const Ran good = sluice(evaluate + " --format json");
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_EQ(Json::parse(good.out)["non_finite"], 0);
}

TEST_F(Numbers, GenerateRefusesLogitsThatAreNotFinite) {
  import_with_a_nan();
  const Ran ran = sluice("generate in --prompt aZ --tokens 2");
  EXPECT_EQ(ran.code, 17) << ran.err;
  EXPECT_TRUE(has(ran.err, "logits are not finite")) << ran.err;
}

TEST_F(Numbers, TrainingEndsWhereTheValidationLossIsNotFinite) {
  import_with_a_nan();
  // Only the held-out end of the text has a 'Z'.
  folder_.write("corpus.txt", std::string(980, 'a') + "Z" + std::string(20, 'a'));
  const Ran config = sluice("inspect in --format json");
  folder_.write("tuned.toml", Json::parse(config.out)["config"].get<std::string>());
  const Ran ran = sluice(
      "train tuned.toml --checkpoint.load=in --data.path=corpus.txt --data.format=text "
      "--data.validation_fraction=0.05 --training.sequence_length=16 "
      "--training.global_batch_size=4 "
      "--training.steps=4 --validation.interval=2");
  EXPECT_EQ(ran.code, 17) << ran.out << ran.err;
  EXPECT_TRUE(has(ran.err, "step 2: the validation loss is not finite")) << ran.err;
  ASSERT_EQ(rows().size(), 2U);
  EXPECT_TRUE(rows()[1]["loss"].is_number());
  EXPECT_TRUE(rows()[1]["validation_loss"].is_null());
  EXPECT_FALSE(std::filesystem::exists(path("checkpoints/step-00000002")));
}

// Held-out text as train sees it: windows of sequence_length tokens.
TEST_F(Numbers, ValidationIsTheLossThatEvaluateGivesForTheSameTokens) {
  const std::string text = test::read_text(path("corpus.txt"));
  const std::size_t total = text.size() + 1, held_out = total / 10;
  const std::size_t samples = (held_out - 1) / 32;
  ASSERT_NE(samples % 8, 0U);  // the last batch is incomplete
  std::vector<int> tokens;
  for (std::size_t n = total - held_out; tokens.size() < samples * 32 + 1; ++n)
    tokens.push_back(n < text.size() ? text[n] : 256);
  write_tokens("tokens", tokens);
  const std::string flags = "--training.steps=6 --training.global_batch_size=";
  ASSERT_EQ(train(flags + "8").code, 0);
  const Ran evaluated = sluice("evaluate checkpoints --tokens tokens --format json");
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  const Json result = Json::parse(evaluated.out);
  EXPECT_EQ(result["tokens"], samples * 32);
  EXPECT_NEAR(rows()[5]["validation_loss"], result["loss"], 1e-5);
  // One batch has another loss.
  clear();
  ASSERT_EQ(train(flags + "8 --validation.batches=1").code, 0);
  EXPECT_GT(std::abs(rows()[5]["validation_loss"].get<double>() - result["loss"].get<double>()),
            1e-5);
}

TEST_F(Numbers, AWarmUpLongerThanTheRunIsShortenedInALineThatSaysSo) {
  const std::string flags = "--training.steps=2 --lr_scheduler.warmup_steps=5 --optimizer.lr=0.25 ";
  const std::string line =
      "lr_scheduler.warmup_steps is 5 and training.steps is 2: the warm-up is shortened to 2 steps";
  const Ran planned = train(flags + "--dry-run");
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_TRUE(has(planned.out, line)) << planned.out;
  const Ran ran = train(flags + "--training.max_norm=0.001 --validation.interval=0");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_TRUE(has(ran.err, line)) << ran.err;
  EXPECT_EQ(rows()[0]["lr"], 0.125);
  EXPECT_EQ(rows()[1]["lr"], 0.25);
}

TEST_F(Numbers, MfuIsOfTheStatedPeakAndNullWithoutOne) {
  const std::string flags =
      "--training.steps=2 --validation.interval=0 --model.tied_embeddings=false ";
  const Ran unknown = train(flags);
  ASSERT_EQ(unknown.code, 0) << unknown.err;
  EXPECT_TRUE(rows()[1]["mfu"].is_null());
  EXPECT_TRUE(has(unknown.out, "mfu: N/A"));
  clear();
  const Ran ran = train(flags + "--cluster.peak_tflops=0.5");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json row = rows()[1];
  // 8 sequences of 32 tokens; weights of 4 layers of 12 x 32 x 32 and of the head, attention by
  // half; on two ranks.
  const double flops = 6 * 256 * (4 * 12 * 32 * 32 + 257 * 32) + 3 * 8 * 4 * (2 * 2 * 32) * 32 * 16;
  EXPECT_NEAR(row["tflops"].get<double>() * row["step_time_s"].get<double>() * 2 * 1e12, flops,
              flops * 1e-9);
  EXPECT_NEAR(row["mfu"].get<double>(), row["tflops"].get<double>() / 0.5, 1e-9);
  EXPECT_TRUE(has(ran.out, fmt::format("mfu: {:.2f}%", 100 * row["mfu"].get<double>()))) << ran.out;
}

TEST_F(Numbers, ARunBeginsWithWhatItIs) {
  const Ran ran = train("--training.steps=1 --validation.interval=1");
  ASSERT_EQ(ran.code, 0) << ran.err;
  // 4 layers of 12 x 32^2 and 13 x 32, table and positions, the last norm.
  const int parameters = 4 * (12 * 32 * 32 + 13 * 32) + (257 + 32) * 32 + 64;
  EXPECT_TRUE(
      has(ran.err, fmt::format("sluice: model: gpt2, 4 layers, dim 32, {} parameters, float32",
                               with_commas(std::to_string(parameters)))))
      << ran.err;
  for (const char* line :
       {"sluice: mesh: 1 data x 2 pipeline x 1 tensor = 2 ranks (threads), 1 thread each, on cpu\n",
        "sluice: schedule: v-half, 4 microbatches of 2 sequences per step\n",
        "sluice: data: corpus.txt, ", " training samples of 32 tokens, ",
        "sluice: folders: checkpoints in checkpoints, metrics in metrics\n"})
    EXPECT_TRUE(has(ran.err, line)) << ran.err << "\nlacks: " << line;
}

}  // namespace
}  // namespace sluice
