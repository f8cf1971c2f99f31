#include "sluice/data/output_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "sluice/base/error.h"
#include "sluice/base/files.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::size_t num_files(const std::string& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), {}));
}

TEST(OutputFile, IsThereOnceItIsWhole) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("a", "before");
  // Small and large pieces stay in order.
  const std::string small = "small", large(3 << 20, 'x');
  OutputFile file(path);
  for (const std::string& piece : {small, large, small})
    file.write(std::as_bytes(std::span(piece)));
  EXPECT_EQ(read_text(path, 100), "before");
  file.commit();
  EXPECT_EQ(read_text(path, 4 << 20), small + large + small);
  EXPECT_EQ(num_files(folder.path()), 1u);
}

TEST(OutputFile, LeavesNothingWithoutACommit) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("a", "before");
  {
    OutputFile file(path);
    file.write(std::as_bytes(std::span("after", 5)));
    file.flush_to_disk();
  }
  EXPECT_EQ(read_text(path, 100), "before");
  EXPECT_EQ(num_files(folder.path()), 1u);
}

TEST(WriteText, ReplacesWhatALinkNames) {
  const test::TemporaryFolder folder;
  const std::string target = folder.write("target", "before"), link = folder.path() + "/link";
  fs::create_symlink("target", link);
  write_text(link, "after");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_text(target, 100), "after");
  EXPECT_EQ(num_files(folder.path()), 2u);
}

TEST(WriteText, NamesTheFileAsTheUserDid) {
  const test::TemporaryFolder folder;
  const std::string path =
      folder.path() + "/../" + fs::path(folder.path()).filename().string() + "/nowhere/a";
  try {
    write_text(path, "text");
    ADD_FAILURE() << "written";
  } catch (const UserError& error) {
    EXPECT_EQ(error.what(), fmt::format("cannot write '{}': No such file or directory", path));
    EXPECT_EQ(error.code(), ExitCode::usage);
  }
}

TEST(WriteText, ADeviceStaysADevice) {
  try {
    write_text("/dev/full", "text");
    ADD_FAILURE() << "written";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "cannot write '/dev/full': No space left on device");
    EXPECT_EQ(error.code(), ExitCode::temporary);
  }
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

}  // namespace
}  // namespace sluice
