// sluice inspect and sluice generate on checkpoints of real training.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "support/golden.h"
#include "support/tiny_run.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;

class CheckpointCommands : public test::TinyRun {
 protected:
  Ran inspect(const std::string& arguments) const { return sluice("inspect " + arguments); }
  Ran generate(const std::string& arguments) const { return sluice("generate " + arguments); }
  Json inspected(const std::string& checkpoint) const {
    const Ran ran = inspect(checkpoint + " --format json");
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.code == 0 ? Json::parse(ran.out) : Json::object();
  }
};

TEST_F(CheckpointCommands, EverySynchronousScheduleGivesTheSameWeights) {
  std::string reference;
  for (const auto& [schedule, degree] :
       {std::pair{"1f1b", 1}, std::pair{"1f1b", 2}, std::pair{"1f1b", 4}, std::pair{"gpipe", 2},
        std::pair{"zb-h1", 4}, std::pair{"interleaved-1f1b", 2}, std::pair{"zb-v", 2},
        std::pair{"v-half", 2}, std::pair{"v-min", 2}}) {
    SCOPED_TRACE(fmt::format("{} on {}", schedule, degree));
    clear();
    const Ran ran =
        train(fmt::format("--training.steps=5 --parallelism.pipeline_parallel_schedule={} "
                          "--parallelism.pipeline_parallel_degree={}",
                          schedule, degree));
    ASSERT_EQ(ran.code, 0) << ran.err;
    const Json held = inspected("checkpoints");
    EXPECT_EQ(held["step"], 5);
    EXPECT_EQ(held["mesh"]["pipeline"], degree);
    EXPECT_EQ(held["schedule"], schedule);
    if (reference.empty()) reference = held["weights_sha256"];
    EXPECT_EQ(held["weights_sha256"], reference);
  }
  clear();
  ASSERT_EQ(train("--training.steps=5 --debug.seed=1").code, 0);
  EXPECT_NE(inspected("checkpoints")["weights_sha256"], reference);
}

TEST_F(CheckpointCommands, InspectShowsWholeWeightsAndTheirConfiguration) {
  ASSERT_EQ(train("--training.steps=4").code, 0);
  const Json held = inspected("checkpoints/step-00000004");
  EXPECT_EQ(inspected("checkpoints"), held);
  std::vector<std::string> names;
  Json shape;
  for (const Json& tensor : held["tensors"]) {
    names.push_back(tensor["name"]);
    EXPECT_EQ(tensor["dtype"], "F32");
    EXPECT_EQ(tensor["sha256"].get<std::string>().size(), 64u);
    if (tensor["name"] == "embedding.weight") shape = tensor["shape"];
  }
  EXPECT_EQ(shape, Json({257, 32}));
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  // Both tables of the embedding, 16 tensors in each of 4 layers, the last norm; the tied head is
  // the embedding.
  EXPECT_EQ(names.size(), 2u + 16 * 4 + 2);
  EXPECT_EQ(std::count(names.begin(), names.end(), "head.weight"), 0);
  EXPECT_EQ(held["states"].size(), 2 * names.size());
  // The configuration inside is one that train takes.
  folder_.write("again.toml", held["config"].get<std::string>());
  const Ran again = sluice("train again.toml --print-config");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.out.find("ffn_dim = 128"), std::string::npos) << again.out;

  const Ran text = inspect("checkpoints");
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* part :
       {"step 4 of v-half", "pipeline 2", "layers.3.mlp.down.weight", "32 x 128"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << " in\n" << text.out;
  EXPECT_NE(text.out.find(held["weights_sha256"].get<std::string>()), std::string::npos);
}

TEST_F(CheckpointCommands, InspectRefusesWhatIsDamaged) {
  ASSERT_EQ(train("--training.steps=4").code, 0);
  const std::string shard = "checkpoints/step-00000004/rank-00000.safetensors";
  std::string bytes = test::read_text(folder_.path() + "/" + shard);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  folder_.write(shard, bytes);
  for (const char* path : {"checkpoints", "checkpoints/step-00000004"}) {
    const Ran ran = inspect(path);
    EXPECT_EQ(ran.code, 3) << ran.err;
    EXPECT_NE(ran.err.find("rank-00000.safetensors"), std::string::npos) << ran.err;
    EXPECT_EQ(ran.out, "");
  }
  EXPECT_EQ(inspect("nowhere").code, 3);
  EXPECT_EQ(inspect("checkpoints --format yaml").code, 2);
}

// Trained on "abcabc..." until it knows it.
constexpr const char* kAlphabet =
    "--data.path=abc.txt --data.validation_fraction=0 --validation.interval=0 --training.steps=150 "
    "--checkpoint.interval=0 ";

TEST_F(CheckpointCommands, AModelContinuesWhatItLearned) {
  std::string text;
  while (text.size() < 4000)
    text += "abc";
  folder_.write("abc.txt", text);
  for (const char* shape : {"gpt2", "llama"}) {
    SCOPED_TRACE(shape);
    clear();
    const Ran trained =
        train(fmt::format("{} --model.shape={} '--generate.prompt=bcab'", kAlphabet, shape));
    ASSERT_EQ(trained.code, 0) << trained.err;
    // The sample comes after the last step, 200 tokens of it.
    const std::string sample = trained.out.substr(trained.out.find("\nbcab") + 1);
    EXPECT_EQ(sample.substr(0, 22), "bcabcabcabcabcabcabcab");
    EXPECT_EQ(sample.size(), 4u + 200 + 1) << sample;
    // More than the 32 positions, so the window slides.
    const Ran ran = generate("checkpoints --prompt abca --tokens 60 --temperature 0");
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.out, text.substr(0, 64) + "\n");
    EXPECT_NE(ran.err.find("60 tokens in "), std::string::npos) << ran.err;
    EXPECT_EQ(generate("checkpoints --prompt-ids 97,98 --tokens 3 --temperature 0").out,
              "97,98,99,97,98\n");
  }
}

TEST_F(CheckpointCommands, TheScheduleOfACheckpointChangesNoText) {
  std::vector<std::string> greedy, drawn;
  for (const char* flags : {"",
                            "--parallelism.pipeline_parallel_schedule=1f1b "
                            "--parallelism.pipeline_parallel_degree=4"}) {
    clear();
    ASSERT_EQ(train(flags).code, 0);
    greedy.push_back(generate("checkpoints --prompt line --temperature 0").out);
    drawn.push_back(generate("checkpoints --prompt line --top-k 20 --seed 7").out);
  }
  EXPECT_TRUE(greedy[0].starts_with("line")) << greedy[0];
  EXPECT_EQ(greedy[0], greedy[1]);
  EXPECT_EQ(drawn[0], drawn[1]);
  EXPECT_NE(generate("checkpoints --prompt line --top-k 20 --seed 8").out, drawn[0]);
  // So small a share is that of the likeliest token.
  EXPECT_EQ(generate("checkpoints --prompt line --top-p 1e-9").out, greedy[0]);
  EXPECT_EQ(generate("checkpoints --prompt line --top-k 20 --seed 7 --top-p 1").out, drawn[0]);
}

TEST_F(CheckpointCommands, ADashReadsThePromptFromStandardInput) {
  ASSERT_EQ(train("--training.steps=1").code, 0);
  const std::string flags = " --tokens 5 --temperature 0";
  const std::string expected = generate("checkpoints --prompt 'two\nlines'" + flags).out;
  EXPECT_TRUE(expected.starts_with("two\nlines")) << expected;
  folder_.write("prompt", "two\nlines\n");
  EXPECT_EQ(generate("checkpoints --prompt - <prompt" + flags).out, expected);
  folder_.write("prompt", "two\nlines");
  EXPECT_EQ(generate("checkpoints --prompt - <prompt" + flags).out, expected);
}

TEST_F(CheckpointCommands, GenerateRefusesBadInput) {
  ASSERT_EQ(train("--training.steps=1").code, 0);
  for (const auto& [arguments, code, word] :
       {std::tuple{"checkpoints", 2, "--prompt"},
        std::tuple{"checkpoints --prompt a --prompt-ids 1", 2, "either"},
        std::tuple{"checkpoints --prompt-ids 1,x", 2, "'x'"},
        std::tuple{"checkpoints --prompt-ids 257", 2, "257"},
        std::tuple{"checkpoints --prompt a --tokens 0", 2, "--tokens"},
        std::tuple{"checkpoints --prompt a --temperature -1", 2, "--temperature"},
        std::tuple{"checkpoints --prompt a --top-p 0", 2, "--top-p is 0: needs to be above 0"},
        std::tuple{"checkpoints --prompt a --top-p 1.01", 2,
                   "--top-p is '1.01': needs a number from 0 to 1"},
        std::tuple{"checkpoints --prompt - </dev/null", 2, "standard input is empty"},
        std::tuple{"checkpoints --prompt a --device gpu", 2,
                   "--device is 'gpu': needs cpu or cuda"},
        std::tuple{"nowhere --prompt a", 3, "nowhere"}}) {
    SCOPED_TRACE(arguments);
    const Ran ran = generate(arguments);
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_NE(ran.err.find(word), std::string::npos) << ran.err;
    EXPECT_EQ(ran.out, "");
  }
}

TEST_F(CheckpointCommands, WithoutAGpuCudaIsRefusedInOneLine) {
  ASSERT_EQ(train("--training.steps=1").code, 0);
  folder_.write("tokens.txt", "1\n2\n3\n");
  for (const auto& [arguments, begin, end] :
       {std::tuple{"generate checkpoints --prompt a --device cuda",
                   "sluice: --device is cuda: ", "; use --device cpu\n"},
        std::tuple{"evaluate checkpoints --tokens tokens.txt --device=cuda",
                   "sluice: --device is cuda: ", "; use --device cpu\n"},
        std::tuple{"train run.toml --cluster.device=cuda",
                   "sluice: cluster.device is cuda: ", "; use --cluster.device=cpu\n"}}) {
    SCOPED_TRACE(arguments);
    const Ran ran = test::run_shell(
        fmt::format("CUDA_VISIBLE_DEVICES= '{}' {}", SLUICE_ENGINE_BINARY, arguments),
        folder_.path());
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_TRUE(ran.err.starts_with(begin)) << ran.err;
    EXPECT_TRUE(ran.err.ends_with(end)) << ran.err;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_EQ(ran.out, "");
  }
}

}  // namespace
}  // namespace sluice
