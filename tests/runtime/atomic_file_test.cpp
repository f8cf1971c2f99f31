#include "sluice/runtime/files/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <filesystem>

#include "runtime/faulty_file_system.h"
#include "sluice/runtime/files/sha256.h"
#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

std::ptrdiff_t num_files(const std::string& folder) {
  return std::distance(fs::directory_iterator(folder), {});
}

TEST(AtomicFile, TakesItsNameOnlyAtCommit) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string path = scratch.write("x", "old");
  {
    AtomicFile file(files, path);
    file.write("new");
    EXPECT_EQ(read_text(path), "old");
    file.commit();
    EXPECT_EQ(read_text(path), "new");
  }
  {
    AtomicFile file(files, path);
    file.write("newer, given up");
  }
  EXPECT_EQ(read_text(path), "new");
  EXPECT_EQ(num_files(scratch.path()), 1);
}

TEST(AtomicFile, PiecesOfAnySizeComeOutInOrder) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  std::string all;
  AtomicFile file(files, scratch.path() + "/x");
  for (const std::size_t size : {3UL, 1UL << 20, 5UL, 3UL << 20, 0UL, (1UL << 20) - 2, 7UL}) {
    const std::string piece(size, static_cast<char>('a' + all.size() % 26));
    file.write(piece);
    all += piece;
  }
  file.commit();
  EXPECT_TRUE(read_text(scratch.path() + "/x") == all);
}

TEST(AtomicFile, DoesNotTouchAnotherWritersTemporary) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string path = scratch.path() + "/x";
  AtomicFile first(files, path), second(files, path);
  first.write("first");
  second.write("second");
  first.commit();
  EXPECT_EQ(read_text(path), "first");
  second.commit();
  EXPECT_EQ(read_text(path), "second");
}

TEST(AtomicFile, ShortAndInterruptedWritesAreContinued) {
  struct Hesitant : RealFileSystem {
    int calls = 0;
    ssize_t write(int fd, const void* bytes, std::size_t size) override {
      if (++calls % 2 == 1) {
        errno = EINTR;
        return -1;
      }
      return RealFileSystem::write(fd, bytes, std::min<std::size_t>(size, 3));
    }
  } files;
  const TemporaryFolder scratch;
  write_file_atomically(files, scratch.path() + "/x", "a few more than three");
  EXPECT_EQ(read_text(scratch.path() + "/x"), "a few more than three");
}

// A limit on file size stands in for a full disk: the kernel itself refuses the write.
TEST(AtomicFile, RefusedWriteIsTemporaryAndHarmsNothing) {
  const TemporaryFolder scratch;
  RealFileSystem files;
  const std::string path = scratch.write("x", "old");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 100'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  ExitCode code = ExitCode::ok;
  std::string told;
  try {
    write_file_atomically(files, path, std::string(200'000, 'x'));
  } catch (const UserError& error) {
    code = error.code();
    told = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(code, ExitCode::temporary);
  EXPECT_NE(told.find("cannot write " + path + ": File too large"), std::string::npos) << told;
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(num_files(scratch.path()), 1);
}

TEST(AtomicFile, MissingFolderIsTheUsersMistake) {
  RealFileSystem files;
  try {
    write_file_atomically(files, "/nowhere/at/all", "x");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_STREQ(error.what(), "cannot create /nowhere/at/all: No such file or directory");
  }
}

TEST(AtomicFile, OnlyItsOwnLeftoversAreTemporaries) {
  EXPECT_TRUE(is_temporary_name("LATEST.tmp-123-0"));
  for (const char* name : {"LATEST", ".tmp-123-0", "x.tmp", "x.tmp-", "x.tmp-notes", "tmp-1-2"})
    EXPECT_FALSE(is_temporary_name(name)) << name;
}

TEST(AppendFile, FailedAppendIsCutBack) {
  const TemporaryFolder scratch;
  const std::string path = scratch.path() + "/log";
  for (int at = 2; at <= 3; ++at) {
    fs::remove(path);
    FaultyFileSystem files(scratch.path(), Fault::error, at, ENOSPC);
    AppendFile file(files, path, AppendFile::Existing::append);  // call 1
    std::string expected;
    for (const char* piece : {"first\n", "second\n", "third\n"}) {
      try {
        file.append(piece);
        expected += piece;
      } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::temporary);
      }
    }
    EXPECT_TRUE(files.happened());
    EXPECT_EQ(read_text(path), expected);
  }
}

TEST(FileSystem, ParentFoldersAreThoseOfTheShell) {
  EXPECT_EQ(parent_folder("a/b"), "a");
  EXPECT_EQ(parent_folder("a//b/"), "a");
  EXPECT_EQ(parent_folder("/a"), "/");
  EXPECT_EQ(parent_folder("a"), ".");
  EXPECT_EQ(parent_folder("/"), "/");
  EXPECT_EQ(parent_folder(""), ".");
  const TemporaryFolder scratch;
  RealFileSystem files;
  make_folders(files, scratch.path() + "/a/b//c/");
  EXPECT_TRUE(fs::is_directory(scratch.path() + "/a/b/c"));
  scratch.write("file", "");
  EXPECT_THROW(make_folders(files, scratch.path() + "/file/x"), UserError);
}

TEST(Sha256, KnownHashes) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const TemporaryFolder scratch;
  const std::string million(5'000'000, 'a');
  Sha256 hash;
  for (std::size_t at = 0; at < million.size(); at += 777'777)
    hash.update(as_byte_span(std::string_view(million).substr(at, 777'777)));
  const std::string pieces = hash.hex();
  EXPECT_EQ(pieces, sha256_hex(million));
  EXPECT_EQ(pieces, sha256_hex(InputFile(scratch.write("a", million))));
}

}  // namespace
}  // namespace sluice::test
