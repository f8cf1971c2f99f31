// The same command again: from whole checkpoints, damaged ones, ones of another model, with other
// settings.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "support/golden.h"
#include "support/tiny_run.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::Ran;

class Resume : public test::TinyRun {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  Json inspected(const std::string& checkpoint) const {
    const Ran ran = sluice(fmt::format("inspect {} --format json", checkpoint));
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.code == 0 ? Json::parse(ran.out) : Json::object();
  }
  std::string weights() const { return inspected("checkpoints")["weights_sha256"]; }

  // All 12 steps, undisturbed, with the checkpoints of 4, 8 and 12 in `kept`.
  std::string reference() const {
    const Ran ran = train();
    EXPECT_EQ(ran.code, 0) << ran.err;
    fs::copy(path("checkpoints"), path("kept"), fs::copy_options::recursive);
    return weights();
  }
  void put_back() const {
    fs::remove_all(path("checkpoints"));
    fs::copy(path("kept"), path("checkpoints"), fs::copy_options::recursive);
  }

  void flip_bit(const std::string& name) const {
    std::string bytes = test::read_text(path(name));
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    folder_.write(name, bytes);
  }

  std::vector<std::string> names(const std::string& folder) const {
    std::vector<std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(path(folder)))
      out.push_back(entry.path().string());
    std::sort(out.begin(), out.end());
    return out;
  }
};

#define EXPECT_SAYS(ran, part) EXPECT_NE((ran).err.find(part), std::string::npos) << (ran).err
#define EXPECT_SILENT_ON(ran, part) EXPECT_EQ((ran).err.find(part), std::string::npos) << (ran).err

TEST_F(Resume, ADamagedNewestCheckpointIsSetAsideAndTheBitsAreThoseOfAnUndisturbedRun) {
  const std::string expected = reference();
  const std::string shard = "checkpoints/step-00000012/rank-00001.safetensors";
  const std::string manifest = "checkpoints/step-00000012/manifest.json";
  const std::pair<const char*, std::function<void()>> damages[] = {
      {"a truncated shard", [&] { fs::resize_file(path(shard), 1000); }},
      {"a flipped bit in a shard", [&] { flip_bit(shard); }},
      {"a flipped bit in the manifest", [&] { flip_bit(manifest); }},
      {"a deleted shard", [&] { fs::remove(path(shard)); }},
      {"a deleted manifest", [&] { fs::remove(path(manifest)); }},
      {"an empty manifest", [&] { folder_.write(manifest, ""); }}};
  for (const auto& [name, damage] : damages) {
    SCOPED_TRACE(name);
    put_back();
    damage();
    const Ran ran = train();
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_SAYS(ran, "resumed from step 8 ");
    EXPECT_SAYS(ran, "step 12 is damaged and now checkpoints/step-00000012.damaged: ");
    EXPECT_EQ(weights(), expected);
    EXPECT_TRUE(fs::exists(path("checkpoints/step-00000012.damaged")));
    EXPECT_EQ(test::read_text(path("checkpoints/LATEST")), "step-00000012\n");
  }
  // Gone altogether.
  put_back();
  fs::remove_all(path("checkpoints/step-00000012"));
  const Ran ran = train();
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_SAYS(ran, "resumed from step 8 ");
  EXPECT_EQ(weights(), expected);
}

TEST_F(Resume, NothingIsSetAsideWhereNoneIsWhole) {
  reference();
  for (const char* step : {"04", "08", "12"})
    flip_bit(fmt::format("checkpoints/step-000000{}/rank-00000.safetensors", step));
  const auto before = names("checkpoints");
  const Ran ran = train();
  EXPECT_EQ(ran.code, 3) << ran.err;
  EXPECT_SAYS(ran, "checkpoints holds no whole checkpoint: ");
  EXPECT_EQ(names("checkpoints"), before);
}

TEST_F(Resume, RollbackGoesBackOnPurpose) {
  const std::string expected = reference();
  const auto before = names("checkpoints");
  const Ran dry = train("--rollback 2 --dry-run");
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_NE(dry.out.find("train would resume from step 4 of checkpoints/step-00000004\n"),
            std::string::npos)
      << dry.out;
  for (const auto& [flags, part] :
       {std::pair{"--rollback 3", "checkpoints has 3 whole checkpoints; go back 2 at most"},
        std::pair{"--rollback -1", "--rollback is -1: needs 1 or more"},
        std::pair{"--rollback 1 --checkpoint.load=checkpoints", "checkpoint.load = latest"}}) {
    const Ran ran = train(flags);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_SAYS(ran, part);
  }
  EXPECT_EQ(names("checkpoints"), before);
  const Ran ran = train("--rollback 2");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_SAYS(ran, "resumed from step 4 ");
  EXPECT_SAYS(ran, "rolled back: step 12 is now checkpoints/step-00000012.rolled-back\n");
  EXPECT_SAYS(ran, "rolled back: step 8 is now checkpoints/step-00000008.rolled-back\n");
  EXPECT_EQ(weights(), expected);
}

TEST_F(Resume, StorageThatGivesNoAnswerIsTemporaryAndHarmsNothing) {
  ASSERT_EQ(train("--training.steps=8").code, 0);
  const auto before = names("checkpoints");
  const auto disturbed = [&](const std::string& call) {
    // The second of the two is for a build with the address sanitizer.
    return test::run_shell(
        fmt::format(
            "SLUICE_FAILING_CALL='{}' LD_PRELOAD='{}' ASAN_OPTIONS=verify_asan_link_order=0 "
            "taskset -c 0 '{}' train run.toml",
            call, SLUICE_FAILING_CALLS, SLUICE_ENGINE_BINARY),
        folder_.path());
  };
  const std::string shard = "step-00000008/rank-00001";
  for (const std::string& call :
       {fmt::format("pread {} {}", shard, ESTALE), fmt::format("pread {} {}", shard, ETIMEDOUT),
        fmt::format("pread {} {}", shard, EAGAIN), fmt::format("pread {} {}", shard, ENOMEM),
        fmt::format("pread {} {}", shard, EIO), fmt::format("open {} {}", shard, ESTALE),
        fmt::format("open step-00000008/manifest {}", ETIMEDOUT),
        fmt::format("lstat LATEST {}", ESTALE), fmt::format("pread corpus.txt {}", EIO)}) {
    SCOPED_TRACE(call);
    const Ran ran = disturbed(call);
    EXPECT_EQ(ran.code, 75) << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_EQ(names("checkpoints"), before);
  }
  const Ran ran = disturbed("");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_SAYS(ran, "resumed from step 8 ");
  EXPECT_SILENT_ON(ran, "damaged");
}

TEST_F(Resume, AFolderThatIsMovedUnderARunEndsItAndIsNotMadeAgain) {
  const Ran ran = test::run_shell(
      fmt::format("taskset -c 0 '{}' train run.toml --training.steps=5000 2>err >out & pid=$!; "
                  "n=0; while [ ! -e checkpoints/LATEST ] && [ $n -lt 3000 ]; do sleep 0.02; "
                  "n=$((n+1)); done; mv checkpoints elsewhere; wait $pid; code=$?; cat err >&2; "
                  "exit $code",
                  SLUICE_ENGINE_BINARY),
      folder_.path());
  EXPECT_EQ(ran.code, 75) << ran.err;
  EXPECT_SAYS(ran,
              "checkpoint.folder checkpoints was moved or deleted while this run was using it");
  EXPECT_FALSE(fs::exists(path("checkpoints")));
  fs::rename(path("elsewhere"), path("checkpoints"));
  EXPECT_EQ(train("--checkpoint.load=latest --training.steps=5").code, 0);
}

TEST_F(Resume, WhatDescribesTheModelComesFromTheCheckpoint) {
  folder_.write(
      "bare.toml",
      std::string(test::kTinyConfig).substr(std::string_view(test::kTinyConfig).find("[data]")));
  const std::string base = "train bare.toml --metrics.folder= ";
  const std::string model =
      "--model.shape=llama --model.layers=4 --model.dim=32 --model.heads=4 --model.kv_heads=2 "
      "--model.ffn_dim=48 --model.tied_embeddings --model.rope_theta=500000 "
      "--model.norm_epsilon=1e-6 ";
  ASSERT_EQ(sluice(base + model + "--training.steps=1 --checkpoint.folder=base").code, 0);
  const Json saved = inspected("base");
  // Nothing is said of the model: it is the checkpoint's, and what is saved says so.
  const std::string load = base + "--training.steps=2 --checkpoint.load=base ";
  const std::string tuned = load + "--checkpoint.folder=tuned ";
  const Ran ran = sluice(tuned + "--training.sequence_length=48");
  ASSERT_EQ(ran.code, 0) << ran.err;
  const std::string config = inspected("tuned")["config"];
  for (const char* line : {"rope_theta = 500000.0", "norm_epsilon = 1e-06", "kv_heads = 2",
                           "ffn_dim = 48", "layers = 4", "positions = 48"})
    EXPECT_NE(config.find(line), std::string::npos) << line << " in\n" << config;
  const Ran printed = sluice(tuned + "--print-config");
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_NE(printed.out.find("# from checkpoint base/step-00000001\n"), std::string::npos)
      << printed.out;
  EXPECT_EQ(sluice(load + model + "--dry-run --checkpoint.folder=other").code, 0);
  // What is said and is not the checkpoint's is refused.
  for (const auto& [flag, difference] :
       {std::pair{"--model.rope_theta=10000",
                  "model.rope_theta is 500000.0 there and 10000.0 here (flag --model.rope_theta);"},
        std::pair{"--model.norm_epsilon=1e-5", "model.norm_epsilon is 1e-06 there and 1e-05 here"},
        std::pair{"--model.norm_epsilon=0", "model.norm_epsilon is 1e-06 there and 1e-05 here"},
        std::pair{"--model.kv_heads=0", "model.kv_heads is 2 there and 4 here"},
        std::pair{"--model.shape=gpt2", "model.shape is \"llama\" there and \"gpt2\" here"}})
    for (const char* mode : {"", " --dry-run", " --print-config"}) {
      SCOPED_TRACE(fmt::format("{}{}", flag, mode));
      const Ran refused = sluice(tuned + flag + mode);
      EXPECT_EQ(refused.code, 3) << refused.err;
      EXPECT_EQ(refused.out, "");
      EXPECT_SAYS(refused, "base/step-00000001 is of another model: ");
      EXPECT_SAYS(refused, difference);
      EXPECT_SAYS(refused,
                  "leave the key out to take the checkpoint's, or name another checkpoint.load\n");
    }
  // A run's own folder is no other case.
  EXPECT_EQ(sluice(base + "--checkpoint.folder=base --model.rope_theta=10000").code, 3);
  EXPECT_EQ(sluice(base + "--checkpoint.folder=base --training.steps=2").code, 0);
}

TEST_F(Resume, KeysThatTheShapeDoesNotReadMayDiffer) {
  ASSERT_EQ(train("--training.steps=1").code, 0);
  EXPECT_EQ(train("--training.steps=1 --model.rope_theta=50000 --dry-run").code, 0);
  // Shorter sequences need fewer positions than there are.
  EXPECT_EQ(train("--training.steps=2 --training.sequence_length=16").code, 0);
  EXPECT_NE(inspected("checkpoints")["config"].get<std::string>().find("positions = 32\n"),
            std::string::npos);
}

TEST_F(Resume, SaysWhatDiffersAndWhatIsLeft) {
  const Ran first = train("--training.steps=4");
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_SILENT_ON(first, "other settings");
  const Ran same = train("--training.steps=4 --checkpoint.interval=2 --metrics.folder=");
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_SILENT_ON(same, "other settings");
  EXPECT_SAYS(same, "nothing is left to do: training.steps is 4; raise it to train on\n");
  const Ran dry = train("--training.steps=4 --optimizer.lr=0.0005 --dry-run");
  EXPECT_NE(dry.out.find("train would resume with other settings: optimizer.lr 0.005 -> 0.0005\n"),
            std::string::npos)
      << dry.out;
  EXPECT_NE(dry.out.find("train would have nothing to do: training.steps is 4\n"),
            std::string::npos)
      << dry.out;
  const Ran other = train(
      "--training.steps=5 --optimizer.lr=0.0005 --training.global_batch_size=16 --debug.seed=3 "
      "--data.validation_fraction=0.2");
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_SAYS(other,
              "resumed with other settings: data.validation_fraction 0.1 -> 0.2, training.steps 4 "
              "-> 5, training.global_batch_size 8 -> 16, optimizer.lr 0.005 -> 0.0005, debug.seed "
              "0 -> 3\n");
  EXPECT_SILENT_ON(other, "nothing is left to do");
}

TEST_F(Resume, AnFp32CheckpointTrainsInBf16AndBack) {
  ASSERT_EQ(train("--training.steps=4").code, 0);
  const Ran dry = train("--training.dtype=bfloat16 --dry-run");
  EXPECT_EQ(dry.code, 0) << dry.err;
  const Ran narrow = train("--training.dtype=bfloat16 --training.steps=6");
  EXPECT_EQ(narrow.code, 0) << narrow.err;
  EXPECT_SAYS(narrow,
              "resumed from step 4 of checkpoints/step-00000004; its float32 weights are converted "
              "to bfloat16\n");
  const Ran wide = train("--training.steps=8");
  EXPECT_EQ(wide.code, 0) << wide.err;
  EXPECT_SAYS(
      wide,
      "resumed from step 6 of checkpoints/step-00000006; its bfloat16 weights are converted "
      "to float32, from their float32 masters\n");
}

}  // namespace
}  // namespace sluice
