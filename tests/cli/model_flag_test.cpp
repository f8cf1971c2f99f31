// --model of schedule, simulate and compare: a known name, the configuration of a run, or a
// config.json.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/run_sluice.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using test::Ran;

// gpt-7b of the known models, and a run that no two stages could share.
constexpr const char* kRun = R"([model]
layers = 32
dim = 4096
heads = 32
vocab_size = 32768
[training]
sequence_length = 16384
[parallelism]
pipeline_parallel_degree = 5
)";

constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 4096,
  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
  "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
  "rope_theta": 500000.0, "rms_norm_eps": 1e-05})";

constexpr const char* kGpt2 = R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12,
  "n_head": 12, "n_positions": 1024, "vocab_size": 50257})";

class ModelFlag : public testing::Test {
 protected:
  Ran run(const std::string& arguments) const {
    return test::run_sluice(arguments, folder_.path());
  }
  // Without the model's name, and without the commands, which hold it.
  Json answer(const std::string& arguments) const {
    const Ran ran = run(arguments + " --format json");
    EXPECT_EQ(ran.code, 0) << arguments << ": " << ran.err;
    Json json = Json::parse(ran.out);
    EXPECT_EQ(json.erase("model"), 1u);
    if (json.contains("schedules"))
      for (Json& row : json["schedules"])
        row.erase("command");
    return json;
  }
  void expect_refused(const std::string& model, const std::string& words, int code = 2) const {
    const Ran ran = run(fmt::format("compare -d 4 -m 8 --model '{}'", model));
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err.find(words), std::string::npos) << ran.err;
    EXPECT_EQ(ran.err.find('\n'), ran.err.size() - 1) << ran.err;
  }

  const test::TemporaryFolder folder_;
};

const std::string kCommands[] = {"schedule seq1f1b -d 4 -m 8 --slices 4 --slice-sizes balanced",
                                 "compare 1f1b seq1f1b zb-v -d 4 -m 8", "simulate 1f1b.csv"};

TEST_F(ModelFlag, TheConfigurationOfARunGivesTheShapeAndTheLength) {
  folder_.write("run.toml", kRun);
  EXPECT_EQ(run("schedule 1f1b -d 4 -m 8 --format csv --out 1f1b.csv").code, 0);
  for (const std::string& command : kCommands) {
    EXPECT_EQ(answer(command + " --model run.toml"),
              answer(command + " --model gpt-7b --tokens 16384"));
    EXPECT_EQ(answer(command + " --model run.toml --tokens 65536"),
              answer(command + " --model gpt-7b --tokens 65536"));
    EXPECT_NE(answer(command + " --model run.toml"), answer(command + " --model gpt-7b"));
  }
  // A schedule that says how long its sequences are knows better.
  EXPECT_EQ(run(kCommands[0] + " --model gpt-7b --format csv --out sliced.csv").code, 0);
  EXPECT_EQ(answer("simulate sliced.csv --model run.toml"),
            answer("simulate sliced.csv --model gpt-7b"));
}

TEST_F(ModelFlag, AConfigOfHuggingFaceGivesTheShape) {
  folder_.write("config.json", kLlama);
  EXPECT_EQ(run("schedule 1f1b -d 4 -m 8 --format csv --out 1f1b.csv").code, 0);
  for (const std::string& command : kCommands)
    EXPECT_EQ(answer(command + " --model config.json"), answer(command + " --model llama-3-8b"));
}

TEST_F(ModelFlag, SequencesEndWithGpt2sTableOfPositions) {
  folder_.write("gpt2.json", kGpt2);
  EXPECT_EQ(answer(kCommands[1] + " --model gpt2.json")["tokens"], 1024);
  EXPECT_EQ(answer(kCommands[1] + " --model gpt2.json --tokens 512")["tokens"], 512);
}

TEST_F(ModelFlag, AKnownNameWinsOverAFile) {
  folder_.write("gpt-7b", kGpt2);
  EXPECT_EQ(answer(kCommands[1] + " --model gpt-7b")["tokens"], 4096);
  expect_refused("./gpt-7b", "./gpt-7b:1:1: ");
}

TEST_F(ModelFlag, WhatIsNeitherANameNorAFileIsToldBoth) {
  const std::string either =
      "; needs one of gpt-2.7b, gpt-7b, gpt-13b, gpt-30b, llama-3-8b, llama-3-70b, or the file of "
      "a model: a run's configuration (TOML) or a Hugging Face config.json\n";
  expect_refused("gpt7b", "--model is 'gpt7b': did you mean 'gpt-7b'?" + either);
  expect_refused("runs/a.toml", "--model is 'runs/a.toml': no such file" + either);
}

TEST_F(ModelFlag, MistakesInAFileNameIt) {
  folder_.write("typo.toml", "[model]\nlayrs = 4\n");
  expect_refused("typo.toml", "typo.toml:2:1: ");
  folder_.write("heads.toml", "[model]\nheads = 3\n");
  expect_refused("heads.toml", "heads.toml: model.heads is 3: does not divide model.dim 128");
  folder_.write("t5.json", R"({"model_type": "t5"})");
  expect_refused("t5.json", "t5.json: model_type is \"t5\": only GPT2LMHeadModel", 3);
  folder_.write("cut.json", R"({"model_type": )");
  expect_refused("cut.json", "cut.json: ", 3);
  expect_refused(".", "cannot read the configuration .: Is a directory");
}

TEST_F(ModelFlag, AFileThatDescribesNoModelIsRefused) {
  folder_.write("empty.toml", "");
  folder_.write("lengths.toml", "[training]\nsequence_length = 64\n");
  expect_refused("empty.toml", "--model is 'empty.toml': it sets no key of [model]");
  expect_refused("lengths.toml", "it sets no key of [model], so it describes no model");
}

TEST_F(ModelFlag, TheCommandOfARowGivesThatRow) {
  folder_.write("my run.toml", kRun);
  const Ran ran = run("compare seq1f1b -d 4 -m 8 --model 'my run.toml' --format json");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json row = Json::parse(ran.out)["schedules"][0];
  const std::string command = row["command"];
  const Ran again = run(command.substr(std::string("sluice ").size()) + " --format json");
  ASSERT_EQ(again.code, 0) << command << again.err;
  EXPECT_EQ(Json::parse(again.out)["makespan"], row["makespan"]) << command;
}

TEST_F(ModelFlag, AnEncoderTakesNoSlices) {
  folder_.write("bert.toml", "[model]\nshape = \"bert\"\nvocab_size = 258\n");
  EXPECT_EQ(run("schedule 1f1b -d 4 -m 8 --model bert.toml").code, 0);
  const Ran sliced = run("schedule seq1f1b -d 4 -m 8 --slices 4 --model bert.toml");
  EXPECT_EQ(sliced.code, 2);
  EXPECT_NE(sliced.err.find("a bert model takes no slices"), std::string::npos) << sliced.err;
  const Json compared = answer("compare 1f1b seq1f1b -d 4 -m 8 --model bert.toml");
  EXPECT_EQ(compared["schedules"].size(), 1u);
  EXPECT_NE(compared["left_out"].dump().find("a bert model takes no slices"), std::string::npos);
}

}  // namespace
}  // namespace sluice
