// Kills, power cuts and disk errors at every single call of a save: what was saved before still
// loads, and nothing corrupt is ever taken for a checkpoint.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "runtime/faulty_file_system.h"
#include "runtime/saved_run.h"
#include "sluice/runtime/files/checkpoint.h"
#include "sluice/runtime/files/checkpoint_folder.h"
#include "support/run_sluice.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

// Steps 10 and 20 are saved; the save of 30 is the one that is disturbed. With keep_latest_k = 2
// it also removes step 10.
std::string baseline(const TemporaryFolder& scratch) {
  const std::string folder = scratch.path() + "/baseline";
  FaultyFileSystem files(folder);
  save(files, folder, 10, 0);
  save(files, folder, 20, 10);
  return folder;
}

std::string fresh_copy(const TemporaryFolder& scratch, const std::string& from) {
  const std::string folder = scratch.path() + "/run";
  fs::remove_all(folder);
  fs::copy(from, folder, fs::copy_options::recursive);
  return folder;
}

int calls_of_a_save(const TemporaryFolder& scratch, const std::string& from, Fault fault) {
  const std::string folder = fresh_copy(scratch, from);
  FaultyFileSystem files(folder, fault);
  save(files, folder, 30, 20, 2);
  return files.calls();
}

bool has_temporaries(const std::string& folder) {
  return std::any_of(fs::recursive_directory_iterator(folder), fs::recursive_directory_iterator(),
                     [](const fs::directory_entry& entry) {
                       return is_temporary_name(entry.path().filename().string());
                     });
}

class CrashTest : public testing::TestWithParam<Fault> {};

TEST_P(CrashTest, NewestCommittedCheckpointLoadsAfterACrashAtAnyCall) {
  const TemporaryFolder scratch;
  const std::string from = baseline(scratch);
  const int calls = calls_of_a_save(scratch, from, GetParam());
  ASSERT_GT(calls, 40);
  int old_ones = 0, new_ones = 0;
  for (int at = 1; at <= calls; ++at) {
    SCOPED_TRACE(fmt::format("crash at call {} of {}", at, calls));
    const std::string folder = fresh_copy(scratch, from);
    FaultyFileSystem files(folder, GetParam(), at);
    EXPECT_THROW(save(files, folder, 30, 20, 2), Killed);
    const auto found = find_latest(folder);
    ASSERT_TRUE(found);
    ASSERT_TRUE(found->step == 20 || found->step == 30) << found->step;
    EXPECT_TRUE(found->passed_over.empty()) << found->passed_over.front().damage;
    ++(found->step == 20 ? old_ones : new_ones);
    expect_contents(*found);
    // The next run resumes there, saves the step that was lost, and leaves nothing half done.
    FaultyFileSystem good(folder);
    if (found->step == 20) save(good, folder, 30, 20, 2);
    save(good, folder, 40, 30, 2);
    expect_contents(*find_latest(folder));
    EXPECT_EQ(steps_in(folder), (std::vector<std::int64_t>{30, 40}));
    EXPECT_FALSE(has_temporaries(folder));
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(old_ones, 30);
  EXPECT_GT(new_ones, 5);
}

INSTANTIATE_TEST_SUITE_P(Faults, CrashTest,
                         testing::Values(Fault::kill, Fault::power_cut, Fault::power_cut_bytes),
                         testing::PrintToStringParamName());

struct DiskError {
  int number = 0;
};
void PrintTo(const DiskError& error, std::ostream* out) { *out << strerrorname_np(error.number); }

class DiskErrorTest : public testing::TestWithParam<DiskError> {};

TEST_P(DiskErrorTest, ErrorAtAnyCallIsReportedAndHarmsNothing) {
  const TemporaryFolder scratch;
  const std::string from = baseline(scratch);
  const int calls = calls_of_a_save(scratch, from, Fault::error);
  for (int at = 1; at <= calls; ++at) {
    SCOPED_TRACE(fmt::format("error at call {} of {}", at, calls));
    const std::string folder = fresh_copy(scratch, from);
    FaultyFileSystem files(folder, Fault::error, at, GetParam().number);
    try {
      save(files, folder, 30, 20, 2);
      // Only closing a folder that is synced already, or leaving a file that is gone, may pass.
      EXPECT_TRUE(files.happened());
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::temporary) << error.what();
      EXPECT_NE(std::string(error.what()).find(folder), std::string::npos) << error.what();
    }
    EXPECT_FALSE(has_temporaries(folder));
    const auto found = find_latest(folder);
    ASSERT_TRUE(found);
    EXPECT_TRUE(found->step == 20 || found->step == 30) << found->step;
    EXPECT_TRUE(found->passed_over.empty());
    expect_contents(*found);
    if (testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Errors, DiskErrorTest,
                         testing::Values(DiskError{ENOSPC}, DiskError{EDQUOT}, DiskError{EIO},
                                         DiskError{ESTALE}, DiskError{ETIMEDOUT}, DiskError{EAGAIN},
                                         DiskError{ENOMEM}),
                         testing::PrintToStringParamName());

TEST(CheckpointCrash, SaveFailsWhenASyncFails) {
  // A failed fsync is never taken for a written file: each one of the save is a failed save.
  const TemporaryFolder scratch;
  const std::string from = baseline(scratch);
  struct FailingSync : RealFileSystem {
    int left = 0;
    int fsync(int) override {
      if (--left != 0) return 0;
      errno = EIO;
      return -1;
    }
  };
  int failed = 0;
  for (int n = 1;; ++n) {
    const std::string folder = fresh_copy(scratch, from);
    FailingSync files;
    files.left = n;
    try {
      save(files, folder, 30, 20);
      break;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::temporary);
      ++failed;
    }
  }
  // The run's folder, two shards with their records, manifest, LATEST: file and folder each.
  EXPECT_EQ(failed, 13);
}

}  // namespace
}  // namespace sluice::test
