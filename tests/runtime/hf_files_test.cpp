// Files that travel with the weights of a Hugging Face folder, and transfers that are killed.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/faulty_file_system.h"
#include "sluice/runtime/files/checkpoint.h"
#include "sluice/runtime/files/digest.h"
#include "sluice/runtime/weights/hf_import.h"
#include "sluice/runtime/weights/saved_model.h"
#include "support/golden.h"
#include "support/hf_model.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::Fault;
using test::FaultyFileSystem;
using test::kTinyGpt2;

const std::vector<std::string> kFiles = {"tokenizer.json",          "tokenizer_config.json",
                                         "special_tokens_map.json", "chat_template.jinja",
                                         "chat_template.json",      "generation_config.json"};

class HfFiles : public testing::Test {
 protected:
  HfFiles() {
    std::string config = kTinyGpt2;
    config.insert(1, R"("bos_token_id": 3, "eos_token_id": [4, 5], "pad_token_id": null, )");
    test::write_hf_folder(path("hf"), config, test::gpt2_tensors());
    for (const std::string& name : kFiles)
      folder_.write("hf/" + name, "the text of " + name);
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string text(const std::string& name) const { return test::read_text(path(name)); }
  void expect_files(const std::string& folder, const std::vector<std::string>& names) const {
    for (const std::string& name : names)
      EXPECT_EQ(text(folder + "/" + name), "the text of " + name) << folder;
  }
  Json config(const std::string& folder) const {
    return Json::parse(text(folder + "/config.json"));
  }
  static std::string refusal(const std::function<void()>& act) {
    try {
      act();
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::usage) << error.what();
      return error.what();
    }
    return "accepted";
  }

  RealFileSystem files_;
  test::TemporaryFolder folder_;
};

TEST_F(HfFiles, TravelFromImportToExport) {
  const Transferred in = import_hf(path("hf"), path("in"), {});
  EXPECT_EQ(in.files, kFiles);
  EXPECT_EQ(tokenizer_of(in.folder), path("in/tokenizer.json"));
  EXPECT_EQ(export_hf(path("in"), path("out")).files, kFiles);
  expect_files("out", kFiles);
  EXPECT_EQ(config("out")["bos_token_id"], 3);
  EXPECT_EQ(config("out")["eos_token_id"], (std::vector<int>{4, 5}));
  EXPECT_TRUE(config("out")["pad_token_id"].is_null());
  // What is not in the one is not in the other: the defaults of transformers stay in force.
  for (const std::string& name : kFiles)
    fs::remove(path("hf/" + name));
  folder_.write("hf/config.json", kTinyGpt2);
  EXPECT_TRUE(import_hf(path("hf"), path("bare"), {}).files.empty());
  EXPECT_TRUE(export_hf(path("bare"), path("bare-out")).files.empty());
  EXPECT_FALSE(config("bare-out").contains("eos_token_id"));
  folder_.write("hf/config.json", std::string(kTinyGpt2).insert(1, R"("eos_token_id": "end", )"));
  EXPECT_THROW(import_hf(path("hf"), path("wrong"), {}), UserError);
}

TEST_F(HfFiles, FollowARunThatStartsFromThem) {
  import_hf(path("hf"), path("in"), {});
  const auto carried = [&](const std::string& tokenizer, const std::string& loaded) {
    fs::remove_all(path("run"));
    fs::create_directory(path("run"));
    copy_model_files(files_, tokenizer, loaded, path("run"));
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path("run")))
      names.insert(entry.path().filename());
    return names;
  };
  std::set<std::string> all(kFiles.begin(), kFiles.end()), tokenizers = all;
  tokenizers.erase("generation_config.json");
  all.insert("hf_token_ids.json");
  EXPECT_EQ(carried("", path("in")), all);
  EXPECT_EQ(carried("", path("in/step-00000000")), all);
  EXPECT_EQ(carried(path("hf/tokenizer.json"), path("in")), all);  // the same tokenizer
  EXPECT_EQ(carried(path("hf/tokenizer.json"), ""), tokenizers);
  EXPECT_EQ(carried("", ""), std::set<std::string>());
  // Another tokenizer: the numbers of the old one would mean something else.
  folder_.write("other.json", "another text");
  EXPECT_EQ(carried(path("other.json"), path("in")), std::set<std::string>{"tokenizer.json"});
  EXPECT_EQ(text("run/tokenizer.json"), "another text");
}

TEST_F(HfFiles, AnExportThatWasKilledCanBeRunAgain) {
  import_hf(path("hf"), path("in"), {});
  export_hf(path("in"), path("whole"));
  fs::create_directory(path("out"));
  FaultyFileSystem counting(path("out"));
  export_hf(counting, path("in"), path("out"));
  const int calls = counting.calls();
  ASSERT_GT(calls, 30);
  for (const Fault fault : {Fault::kill, Fault::power_cut, Fault::power_cut_bytes})
    for (int at = 1; at <= calls; ++at) {
      SCOPED_TRACE(
          fmt::format("killed at call {} of {}, {}", at, calls, testing::PrintToString(fault)));
      fs::remove_all(path("out"));
      fs::create_directory(path("out"));
      FaultyFileSystem dying(path("out"), fault, at);
      EXPECT_THROW(export_hf(dying, path("in"), path("out")), test::Killed);
      if (!fs::exists(path("out/config.json"))) export_hf(path("in"), path("out"));
      for (const auto& entry : fs::directory_iterator(path("whole"))) {
        const std::string name = entry.path().filename();
        EXPECT_EQ(text("out/" + name), text("whole/" + name)) << name;
      }
      EXPECT_EQ(std::distance(fs::directory_iterator(path("out")), {}),
                std::distance(fs::directory_iterator(path("whole")), {}));
      if (HasFailure()) return;
    }
}

TEST_F(HfFiles, AnExportThatFailsLeavesNothing) {
  import_hf(path("hf"), path("in"), {});
  for (int at = 3; at < 30; ++at) {
    fs::remove_all(path("out"));
    fs::create_directory(path("out"));
    FaultyFileSystem full(path("out"), Fault::error, at, ENOSPC);
    try {
      export_hf(full, path("in"), path("out"));
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::temporary) << error.what();
      EXPECT_TRUE(fs::is_empty(path("out"))) << at;
    }
  }
}

TEST_F(HfFiles, AKilledExportOfAnotherModelLeavesNoFileBehind) {
  import_hf(path("hf"), path("in"), {});
  test::write_hf_folder(path("llama"), test::kTinyLlama, test::llama_tensors());
  import_hf(path("llama"), path("other"), {});
  fs::create_directory(path("out"));
  FaultyFileSystem dying(path("out"), Fault::kill, 40);
  EXPECT_THROW(export_hf(dying, path("in"), path("out")), test::Killed);
  EXPECT_TRUE(fs::exists(path("out/tokenizer.json")));
  export_hf(path("other"), path("out"));
  EXPECT_FALSE(fs::exists(path("out/tokenizer.json")));
  EXPECT_EQ(config("out")["model_type"], "llama");
}

TEST_F(HfFiles, AForeignFolderIsNeverOverwritten) {
  import_hf(path("hf"), path("in"), {});
  const auto why = [&](const std::vector<std::string>& names) {
    fs::remove_all(path("out"));
    fs::create_directory(path("out"));
    for (const std::string& name : names)
      folder_.write("out/" + name, "theirs");
    const std::string said = refusal([&] { export_hf(path("in"), path("out")); });
    for (const std::string& name : names)
      EXPECT_EQ(text("out/" + name), "theirs") << name;
    return said;
  };
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json",
                           "generation_config.json", "tokenizer.json", "chat_template.jinja"})
    EXPECT_NE(why({name}).find(fmt::format("out/{} exists", name)), std::string::npos) << name;
  // Whole, beside a temporary of ours.
  EXPECT_NE(
      why({"config.json", "model.safetensors", "config.json.tmp-1-0"}).find("config.json exi"),
      std::string::npos);
  EXPECT_NE(why({"model.safetensors", "tokenizer.json.tmp-1-0"}).find("model.safetensors exists"),
            std::string::npos);
  fs::remove_all(path("out"));
  fs::create_directory(path("out"));
  folder_.write("out/README.md", "theirs");
  export_hf(path("in"), path("out"));
  EXPECT_EQ(text("out/README.md"), "theirs");
}

TEST_F(HfFiles, AnImportThatWasKilledCanBeRunAgain) {
  const std::string expected =
      digest(Checkpoint(import_hf(path("hf"), path("whole"), {}).folder)).weights_sha256;
  fs::create_directory(path("in"));
  FaultyFileSystem counting(path("in"));
  import_hf(counting, path("hf"), path("in"), {});
  const int calls = counting.calls();
  ASSERT_GT(calls, 40);
  for (const Fault fault : {Fault::kill, Fault::power_cut, Fault::power_cut_bytes})
    for (int at = 1; at <= calls; ++at) {
      SCOPED_TRACE(
          fmt::format("killed at call {} of {}, {}", at, calls, testing::PrintToString(fault)));
      fs::remove_all(path("in"));
      fs::create_directory(path("in"));
      FaultyFileSystem dying(path("in"), fault, at);
      EXPECT_THROW(import_hf(dying, path("hf"), path("in"), {}), test::Killed);
      if (!fs::exists(path("in/LATEST"))) import_hf(path("hf"), path("in"), {});
      EXPECT_EQ(digest(Checkpoint(path("in/step-00000000"))).weights_sha256, expected);
      expect_files("in", kFiles);
      if (HasFailure()) return;
    }
}

}  // namespace
}  // namespace sluice
