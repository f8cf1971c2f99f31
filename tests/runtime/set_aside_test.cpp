// Checkpoints that must not be taken: damaged ones, ones to go back from, ones that the storage
// gives no answer about. And folders that vanish under a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "runtime/faulty_file_system.h"
#include "runtime/saved_run.h"
#include "sluice/base/storage_error.h"
#include "sluice/runtime/files/sha256.h"
#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

class SetAside : public testing::Test {
 protected:
  // Steps 10, 20 and 30 are saved.
  void SetUp() override {
    for (const std::int64_t step : {10, 20, 30})
      save(files_, folder_, step, step - 10);
  }

  std::string path(std::int64_t step, const std::string& file = "") const {
    return folder_ + "/" + step_folder_name(step) + (file.empty() ? "" : "/" + file);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> out = names_in(folder_);
    std::sort(out.begin(), out.end());
    return out;
  }

  ExitCode code_of(const auto& work) const {
    try {
      work();
    } catch (const UserError& error) {
      text_ = error.what();
      return error.code();
    }
    return ExitCode::ok;
  }

  mutable std::string text_;  // of the last error
  TemporaryFolder scratch_;
  std::string folder_ = scratch_.path() + "/checkpoints";
  FaultyFileSystem files_{folder_};  // without a fault: real, but for the time that a sync takes
  const std::string shard_ = "rank-00001.safetensors";
};

TEST_F(SetAside, ADamagedCheckpointGetsAnotherNameAndTheOneBeforeIsTheLatest) {
  fs::resize_file(path(30, shard_), 100);
  fs::remove(path(20, "manifest.json"));
  const auto found = find_latest(folder_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 10);
  const std::vector<std::string> lines = set_aside(files_, folder_, *found);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("step 30 is damaged"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find(path(30) + ".damaged"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find(shard_ + ": has 100 bytes"), std::string::npos) << lines[0];
  // Step 20 never ended, as far as anyone can tell: a run removes it.
  EXPECT_EQ(names(), (std::vector<std::string>{".lock", "LATEST", "step-00000010", "step-00000020",
                                               "step-00000030.damaged"}));
  EXPECT_EQ(read_text(folder_ + "/LATEST"), "step-00000010\n");
  EXPECT_TRUE(find_latest(folder_)->passed_over.empty());
  // Saving goes on, and what was set aside neither counts nor is removed.
  save(files_, folder_, 20, 10, 2);
  save(files_, folder_, 30, 20, 2);
  EXPECT_EQ(names(), (std::vector<std::string>{".lock", "LATEST", "step-00000020", "step-00000030",
                                               "step-00000030.damaged"}));
  expect_contents(*find_latest(folder_));
  // The same again: both are kept.
  fs::resize_file(path(30, shard_), 100);
  set_aside(files_, folder_, *find_latest(folder_));
  EXPECT_TRUE(fs::exists(path(30) + ".damaged"));
  EXPECT_TRUE(fs::exists(path(30) + ".damaged-2"));
}

TEST_F(SetAside, ACheckpointThatIsGoneIsPassedOver) {
  fs::remove_all(path(30));
  const auto found = find_latest(folder_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 20);
  const std::vector<std::string> lines = set_aside(files_, folder_, *found);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(lines[0].starts_with("passed over: ")) << lines[0];
  EXPECT_EQ(read_text(folder_ + "/LATEST"), "step-00000020\n");
  save(files_, folder_, 30, 20);
  expect_contents(*find_latest(folder_));
}

TEST_F(SetAside, RollingBackPassesOverSoManyWholeOnes) {
  EXPECT_EQ(find_latest(folder_, {.rollback = 1})->step, 20);
  EXPECT_EQ(find_latest(folder_, {.rollback = 2})->step, 10);
  EXPECT_EQ(code_of([&] { find_latest(folder_, {.rollback = 3}); }), ExitCode::usage);
  EXPECT_EQ(text_,
            fmt::format("`rollback` is 3: {} has 3 whole checkpoints; go back 2 at most", folder_));
  EXPECT_EQ(code_of([&] { find_latest(scratch_.path() + "/none", {.rollback = 1}); }),
            ExitCode::usage);
  // A damaged one does not count.
  fs::resize_file(path(20, shard_), 100);
  const auto found = find_latest(folder_, {.rollback = 1});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 10);
  EXPECT_EQ(set_aside(files_, folder_, *found).size(), 2U);
  EXPECT_EQ(names(),
            (std::vector<std::string>{".lock", "LATEST", "step-00000010", "step-00000020.damaged",
                                      "step-00000030.rolled-back"}));
  // It can be loaded by its name.
  EXPECT_EQ(checkpoint_at(path(30) + ".rolled-back"), path(30) + ".rolled-back");
}

TEST_F(SetAside, WhatAnotherVersionSavedIsNotDamaged) {
  std::string text = read_text(path(30, "manifest.json"));
  text = text.substr(0, text.rfind(" \"sha256\": "));
  const std::string format = R"("format": 4)";
  text.replace(text.find(format), format.size(), R"("format": 5)");
  std::ofstream(path(30, "manifest.json"))
      << text << " \"sha256\": \"" << sha256_hex(text) << "\"\n}\n";
  EXPECT_EQ(code_of([&] { find_latest(folder_); }), ExitCode::usage);
  EXPECT_NE(text_.find("use the version that wrote it"), std::string::npos) << text_;
}

TEST_F(SetAside, AnErrorOfStorageIsTemporaryWhoeverMeetsIt) {
  for (const int error : {ESTALE, ETIMEDOUT, EAGAIN, ENOMEM, EIO}) {
    EXPECT_TRUE(is_transient(error));
    EXPECT_EQ(file_error("write", "x", error).code(), ExitCode::temporary) << error;
    EXPECT_EQ(read_error("read", "x", error).code(), ExitCode::temporary) << error;
  }
  EXPECT_EQ(read_error("open", "x", ENOENT).code(), ExitCode::bad_data);
  EXPECT_EQ(read_error("open", "x", EACCES).code(), ExitCode::usage);
  // A file whose first byte cannot be read: EIO.
  const InputFile memory("/proc/self/mem");
  std::array<std::byte, 1> into{};
  EXPECT_EQ(code_of([&] { memory.read_at(0, into); }), ExitCode::temporary) << text_;
  EXPECT_NE(text_.find("start again"), std::string::npos) << text_;
}

TEST_F(SetAside, AMovedFolderIsNotMadeAgain) {
  const std::string elsewhere = scratch_.path() + "/elsewhere";
  for (const bool another_run : {false, true}) {
    SCOPED_TRACE(another_run);
    CheckpointFolder first(files_, {folder_, 0, 2, 30, 0});
    CheckpointFolder second(files_, {folder_, 1, 2, 30, 0});
    first.check_lock();
    second.check_lock();
    fs::rename(folder_, elsewhere);
    std::optional<CheckpointFolder> other;
    if (another_run) other.emplace(files_, CheckpointFolderOptions{folder_, 0, 2, 0, 0});
    EXPECT_EQ(code_of([&] { first.check_lock(); }), ExitCode::temporary);
    EXPECT_NE(text_.find("was moved or deleted while this run was using it"), std::string::npos)
        << text_;
    if (!another_run) {
      EXPECT_EQ(code_of([&] { write_shard(first, 0, 40); }), ExitCode::temporary);
      EXPECT_EQ(code_of([&] { write_shard(second, 1, 40); }), ExitCode::temporary);
      EXPECT_FALSE(fs::exists(folder_));
    }
    EXPECT_EQ(code_of([&] { first.commit(info_of(40)); }), ExitCode::temporary);
    EXPECT_EQ(steps_in(folder_), std::vector<std::int64_t>{});
    fs::remove_all(folder_);
    fs::rename(elsewhere, folder_);
  }
  save(files_, folder_, 40, 30);
}

}  // namespace
}  // namespace sluice::test
