// sluice import, export and evaluate, and training on from weights of others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "sluice/runtime/files/safetensors.h"
#include "support/golden.h"
#include "support/hf_model.h"
#include "support/tiny_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;

class WeightsCommands : public test::TinyRun {
 protected:
  WeightsCommands() {
    test::write_hf_folder(path("gpt2"), test::kTinyGpt2, test::gpt2_tensors());
    test::write_hf_folder(path("llama"), test::kTinyLlama, test::llama_tensors(), Dtype::bf16,
                          true);
    for (int i = 0; i < 40; ++i)
      tokens_ += fmt::format("{}\n", i * i % 19);
    folder_.write("tokens.txt", tokens_);
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  Ran good(const std::string& arguments) const {
    Ran ran = sluice(arguments);
    EXPECT_EQ(ran.code, 0) << arguments << ": " << ran.err;
    return ran;
  }
  Json evaluated(const std::string& arguments) const {
    const Ran ran = good("evaluate " + arguments + " --per-token --format json");
    return ran.code == 0 ? Json::parse(ran.out) : Json::object();
  }
  Json inspected(const std::string& checkpoint) const {
    return Json::parse(good("inspect " + checkpoint + " --format json").out);
  }

  std::string tokens_;
};

TEST_F(WeightsCommands, AnImportedModelIsAnOrdinaryCheckpoint) {
  for (const char* name : {"gpt2", "llama"}) {
    SCOPED_TRACE(name);
    const Ran imported = good(fmt::format("import {0} --out {0}-in", name));
    EXPECT_NE(
        imported.out.find(fmt::format("imported to {}-in/step-00000000: {}, 2 layers", name, name)),
        std::string::npos)
        << imported.out;
    const Json held = inspected(fmt::format("{}-in", name));
    EXPECT_EQ(held["step"], 0);
    EXPECT_EQ(held["states"], Json::array());
    const Ran generated =
        good(fmt::format("generate {}-in --prompt-ids 1,2,3 --tokens 4 --temperature 0", name));
    EXPECT_TRUE(generated.out.starts_with("1,2,3,")) << generated.out;
    good(fmt::format("export {0}-in --out {0}-out", name));
    good(fmt::format("import {0}-out --out {0}-again", name));
    EXPECT_EQ(inspected(fmt::format("{}-again", name))["tensors"], held["tensors"]);
  }
}

TEST_F(WeightsCommands, EvaluateGivesTheLossOfEveryToken) {
  good("import gpt2 --out in");
  const Json whole = evaluated("in --tokens tokens.txt --sequence-length 20 --logits logits");
  EXPECT_EQ(whole["tokens"], 39);
  EXPECT_EQ(whole["sequence_length"], 20);
  const Json& per_token = whole["per_token"];
  ASSERT_EQ(per_token.size(), 40u);
  EXPECT_TRUE(per_token[0].is_null());
  double sum = 0;
  for (std::size_t i = 1; i < 40; ++i)
    sum += per_token[i].get<double>();
  EXPECT_NEAR(sum / 39, whole["loss"], 1e-6);
  // The logits behind a token say what they make of the next one.
  const SafetensorsFile file(path("logits"));
  const TensorInfo* logits = file.find("logits");
  ASSERT_TRUE(logits && logits->shape == (std::vector<std::int64_t>{40, 19}));
  std::vector<float> values(40 * 19);
  file.read(*logits, std::as_writable_bytes(std::span(values)));
  for (std::size_t i = 0; i + 1 < 40; ++i) {
    double all = 0;
    for (std::size_t word = 0; word < 19; ++word)
      all += std::exp(values[i * 19 + word]);
    EXPECT_NEAR(per_token[i + 1].get<double>(),
                std::log(all) - values[i * 19 + (i + 1) * (i + 1) % 19], 1e-5);
  }
  // What stands in the first 20 tokens knows nothing of the cut; what comes after it does.
  const Json shorter = evaluated("in --tokens tokens.txt --sequence-length 10");
  EXPECT_EQ(shorter["tokens"], 39);
  for (std::size_t i = 1; i <= 10; ++i)
    EXPECT_NEAR(shorter["per_token"][i], per_token[i], 1e-5);
  EXPECT_GT(std::abs(shorter["per_token"][15].get<double>() - per_token[15].get<double>()), 1e-4);

  const Ran text = good("evaluate in --tokens tokens.txt --sequence-length 20");
  EXPECT_TRUE(text.out.starts_with(fmt::format("loss {:.9g} nats", whole["loss"].get<double>())))
      << text.out;
}

TEST_F(WeightsCommands, EvaluateTakesAMegatronPairDocumentByDocument) {
  folder_.write("a.jsonl", "{\"text\": \"one document\"}\n{\"text\": \"and one more\"}\n");
  ASSERT_EQ(train("--training.steps=2").code, 0);
  good("data a.jsonl --out pair");
  const Json result = evaluated("checkpoints --tokens pair");
  EXPECT_EQ(result["tokens"], 12 + 12);
  EXPECT_TRUE(result["per_token"][13].is_null());
  std::string lines;
  for (const char c : std::string("one document"))
    lines += fmt::format("{}\n", static_cast<int>(c));
  folder_.write("lines", lines + "256\n");
  EXPECT_EQ(evaluated("checkpoints --tokens pair.idx"), result);
  const Json first = evaluated("checkpoints --tokens lines");
  for (std::size_t i = 1; i < 13; ++i)
    EXPECT_NEAR(first["per_token"][i], result["per_token"][i], 1e-5);
}

// With the byte tokenizer's vocabulary.
std::string with_bytes(std::string config, test::HfTensors& tensors) {
  for (auto& [name, shape] : tensors)
    if (shape[0] == 19) shape[0] = 257;
  const std::string vocabulary = R"("vocab_size": 19)";
  return config.replace(config.find(vocabulary), vocabulary.size(), R"("vocab_size": 257)");
}

TEST_F(WeightsCommands, TrainingGoesOnFromImportedWeights) {
  for (const bool gpt2 : {true, false}) {
    SCOPED_TRACE(gpt2);
    clear();
    test::HfTensors tensors = gpt2 ? test::gpt2_tensors() : test::llama_tensors();
    const std::string config = with_bytes(gpt2 ? test::kTinyGpt2 : test::kTinyLlama, tensors);
    const std::string name = gpt2 ? "bytes-gpt2" : "bytes-llama";
    test::write_hf_folder(path(name), config, tensors, gpt2 ? Dtype::f32 : Dtype::bf16);
    good(fmt::format("import {0} --out {0}-in", name));
    const Json imported = inspected(name + "-in");
    folder_.write("tuned.toml", imported["config"].get<std::string>());
    const std::string run = fmt::format(
        "train tuned.toml --checkpoint.load={}-in --data.path=corpus.txt --data.format=text "
        "--training.sequence_length=16 --training.global_batch_size=4 "
        "--parallelism.pipeline_parallel_degree=2 ",
        name);
    // A step that changes nothing: masters, too, began as the weights are.
    const Ran still = good(run + "--training.steps=1 --optimizer.lr=0 --optimizer.weight_decay=0");
    EXPECT_NE((still.out + still.err).find("it holds no optimizer states, so they begin anew"),
              std::string::npos)
        << still.out << still.err;
    EXPECT_EQ(inspected("checkpoints")["weights_sha256"], imported["weights_sha256"]);
    EXPECT_EQ(inspected("checkpoints")["states"].size(),
              imported["tensors"].size() * (gpt2 ? 2 : 3));
    clear();
    good(run + "--training.steps=3");
    EXPECT_NE(inspected("checkpoints")["weights_sha256"], imported["weights_sha256"]);
    good(fmt::format("export checkpoints --out {}-out", name));
    good(fmt::format("import {0}-out --out {0}-again", name));
    EXPECT_EQ(inspected(name + "-again")["tensors"], inspected("checkpoints")["tensors"]);
    // In the other type, as if there were no training before.
    clear();
    const Ran other = good(
        run + fmt::format("--training.steps=1 --training.dtype={}", gpt2 ? "bfloat16" : "float32"));
    EXPECT_NE(other.err.find(gpt2 ? "its float32 weights are converted to bfloat16\n"
                                  : "its bfloat16 weights are converted to float32\n"),
              std::string::npos)
        << other.err;
  }
}

TEST_F(WeightsCommands, ATokenizerTravelsFromTheDataToTheSample) {
  const std::string tokenizer = std::string(SLUICE_TEST_DATA) + "/tokenizers/gpt2.json";
  const std::string words =
      fmt::format("--model.vocab_size=420 --data.tokenizer='{}' --training.steps=2 ", tokenizer);
  ASSERT_EQ(train(words).code, 0) << train(words).err;
  const std::string first = inspected("checkpoints")["weights_sha256"];
  EXPECT_EQ(test::read_text(path("checkpoints/tokenizer.json")), test::read_text(tokenizer));
  const Ran generated = good("generate checkpoints --prompt 'a line' --tokens 5 --temperature 0");
  EXPECT_TRUE(generated.out.starts_with("a line")) << generated.out;
  // The same tokens from a file of tokens.
  good(fmt::format("data corpus.txt --out words --tokenizer '{}'", tokenizer));
  clear();
  const Ran ran = train(words + "--data.path=words --data.format=megatron");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(inspected("checkpoints")["weights_sha256"], first);
  // It goes along.
  good("export checkpoints --out out");
  EXPECT_EQ(test::read_text(path("out/tokenizer.json")), test::read_text(tokenizer));
  EXPECT_NE(test::read_text(path("out/config.json")).find("\"eos_token_id\": 0"),
            std::string::npos);
  good("import out --out in");
  EXPECT_EQ(good("generate in --prompt 'a line' --tokens 5 --temperature 0").out, generated.out);
  const std::string later = path("later");
  good(
      "train run.toml --checkpoint.load=in --checkpoint.folder=later --data.path=words.bin "
      "--data.format=megatron --model.vocab_size=420 --training.steps=1");
  EXPECT_TRUE(std::filesystem::exists(later + "/tokenizer.json"));
  // Without one, bytes are no words of this model.
  std::filesystem::remove(path("in/tokenizer.json"));
  const Ran none = sluice("generate in --prompt a");
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("no tokenizer.json"), std::string::npos) << none.err;
  EXPECT_EQ(sluice("data corpus.txt --out x --tokenizer corpus.txt").code, 3);
}

TEST_F(WeightsCommands, BadInputGetsOneClearLine) {
  good("import gpt2 --out in");
  folder_.write("bad.txt", "1\n2\n19\n");
  folder_.write("word.txt", "1\n\nx\n");
  folder_.write("one.txt", "1\n");
  folder_.write("none.txt", "\n");
  test::write_hf_folder(path("other"), R"({"architectures": ["BertForMaskedLM"]})", {});
  test::write_hf_folder(path("text"), test::kTinyGpt2, {});
  folder_.write("text/model.safetensors", "what is this");
  for (const auto& [arguments, code, word] :
       {std::tuple{"evaluate in --tokens bad.txt", 3, "bad.txt:3: token \"19\""},
        std::tuple{"evaluate in --tokens word.txt", 3, "word.txt:3: token \"x\""},
        std::tuple{"evaluate in --tokens one.txt", 3, "nothing to predict"},
        std::tuple{"evaluate in --tokens none.txt", 3, "holds no tokens"},
        std::tuple{"evaluate in --tokens nowhere", 2, "nowhere"},
        std::tuple{"evaluate in", 2, "--tokens"},
        std::tuple{"evaluate in --tokens tokens.txt --sequence-length 25", 2, "at most 24 tokens"},
        std::tuple{"evaluate nowhere --tokens tokens.txt", 3, "nowhere"},
        std::tuple{"import gpt2", 2, "--out"},
        std::tuple{"import gpt2 --out in", 2, "saved already"},
        std::tuple{"import gpt2 --out new --dtype half", 2, "--dtype is 'half'"},
        std::tuple{"import nowhere --out new", 3, "nowhere"},
        std::tuple{"import other --out new", 3, "only GPT2LMHeadModel"},
        std::tuple{"import text --out new", 3, "not a safetensors file"},
        std::tuple{"export nowhere --out new", 3, "nowhere"},
        std::tuple{"export in --out gpt2", 2, "exists, and is not overwritten"}}) {
    SCOPED_TRACE(arguments);
    const Ran ran = sluice(arguments);
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_NE(ran.err.find(word), std::string::npos) << ran.err;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_EQ(ran.out, "");
  }
}

}  // namespace
}  // namespace sluice
