// sluice data as users meet it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

using test::Ran;
using test::read_text;
using test::run_shell;
using test::run_sluice;
using test::TemporaryFolder;

void expect_error(const TemporaryFolder& folder, const std::string& arguments, int code,
                  const std::string& text) {
  SCOPED_TRACE(arguments);
  const Ran ran = run_sluice(arguments, folder.path());
  EXPECT_EQ(ran.code, code);
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(ran.err, "sluice: " + text + "\n");
}

std::size_t num_files(const TemporaryFolder& folder) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(folder.path()), {}));
}

TEST(DataCommand, WritesAPairAndInspectsIt) {
  const TemporaryFolder folder;
  folder.write("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"\"}\n{\"text\":\"c\"}\n");
  const Ran made = run_sluice("data a.jsonl --out tokens", folder.path());
  EXPECT_EQ(made.code, 0);
  EXPECT_EQ(made.out, "tokens: 2 documents, 5 tokens, 10 bytes (1 empty document left out)\n");
  EXPECT_EQ(made.err, "");  // no progress line where there is no terminal
  EXPECT_EQ(read_text(folder.path() + "/tokens.bin"), std::string("a\0b\0\0\1c\0\0\1", 10));
  for (const char* name : {"tokens", "tokens.idx", "tokens.bin"}) {
    const Ran seen = run_sluice(std::string("data --inspect ") + name, folder.path());
    EXPECT_EQ(seen.code, 0);
    EXPECT_EQ(seen.out,
              "tokens: 2 documents, 2 sequences, 5 tokens, 10 bytes (u16)\n"
              "documents have 2 to 3 tokens; the largest token is 256\n");
  }
  EXPECT_EQ(num_files(folder), 3u);
}

TEST(DataCommand, APairIsReplacedOnlyByForce) {
  const TemporaryFolder folder;
  folder.write("a.txt", "ab");
  folder.write("b.txt", "c");
  ASSERT_EQ(run_sluice("data a.txt --out t", folder.path()).code, 0);
  const std::string before = read_text(folder.path() + "/t.bin");
  const std::string why = "t.bin exists; choose another name, or replace it with --force";
  for (const char* name : {"t", "t.idx"})
    expect_error(folder, fmt::format("data b.txt --out {}", name), 2,
                 fmt::format("--out is '{}': {}", name, why));
  EXPECT_EQ(read_text(folder.path() + "/t.bin"), before);
  EXPECT_EQ(run_sluice("data b.txt --out t --force", folder.path()).code, 0);
  EXPECT_EQ(read_text(folder.path() + "/t.bin"), std::string("c\0\0\1", 4));
  // Half of a pair is not ours to replace, either.
  std::filesystem::remove(folder.path() + "/t.bin");
  expect_error(folder, "data b.txt --out t", 2,
               "--out is 't': t.idx exists; choose another name, or replace it with --force");
}

TEST(DataCommand, ADashReadsStandardInput) {
  const TemporaryFolder folder;
  const std::string program = fmt::format("'{}' data ", SLUICE_BINARY);
  const Ran text = run_shell("printf 'ab' | " + program + "- --out t", folder.path());
  EXPECT_EQ(text.out, "t: 1 document, 3 tokens, 6 bytes\n") << text.err;
  EXPECT_EQ(read_text(folder.path() + "/t.bin"), std::string("a\0b\0\0\1", 6));
  const std::string line = R"({"k":"x"})";
  const Ran lines = run_shell(
      fmt::format("{{ echo '{0}'; sleep 0.1; echo '{0}'; }} | {1} - --format jsonl --key k --out u",
                  line, program),
      folder.path());
  EXPECT_EQ(lines.out, "u: 2 documents, 4 tokens, 8 bytes\n") << lines.err;
  expect_error(folder, "data - --out v", 3, "'standard input' holds no text: nothing to write");
  const Ran binary = run_shell("printf 'a\\377' | " + program + "- --out v", folder.path());
  EXPECT_EQ(binary.code, 3);
  EXPECT_TRUE(binary.err.starts_with("sluice: 'standard input' is not UTF-8 text: byte 1 is 0xff"))
      << binary.err;
  EXPECT_EQ(num_files(folder), 4u);
}

TEST(DataCommand, ABinaryFileIsRefusedUnlessBytesAreMeant) {
  const TemporaryFolder folder;
  folder.write("corpus.gz", "\x1f\x8b\x08");
  expect_error(folder, "data corpus.gz --out t", 3,
               "'corpus.gz' is not UTF-8 text: byte 1 is 0x8b; decompress or convert it first, or "
               "read it as raw bytes with data.format = \"bytes\" (sluice data: --format bytes)");
  EXPECT_EQ(num_files(folder), 1u);
  EXPECT_EQ(run_sluice("data corpus.gz --out t --format bytes", folder.path()).code, 0);
  EXPECT_EQ(read_text(folder.path() + "/t.bin"), std::string("\x1f\0\x8b\0\x08\0\0\1", 8));
}

TEST(DataCommand, AFailedRunLeavesTheOldPairAndNothingElse) {
  const TemporaryFolder folder;
  folder.write("a.jsonl", "{\"text\":\"ab\"}\n");
  folder.write("b.jsonl", "{\"text\":\"ab\"}\nnonsense\n");
  ASSERT_EQ(run_sluice("data a.jsonl --out t", folder.path()).code, 0);
  const std::string before = read_text(folder.path() + "/t.idx");
  const Ran failed = run_sluice("data b.jsonl --out t --force", folder.path());
  EXPECT_EQ(failed.code, 3);
  EXPECT_NE(failed.err.find("b.jsonl:2: column 2: not JSON"), std::string::npos) << failed.err;
  EXPECT_EQ(read_text(folder.path() + "/t.idx"), before);
  EXPECT_EQ(num_files(folder), 4u);

  // A write that fails half-way, past the limit on the size of a file.
  folder.write("large.txt", std::string(4 << 20, 'x'));
  const Ran full = run_shell(std::string("trap '' XFSZ; ulimit -f 1024; '") + SLUICE_BINARY +
                                 "' data large.txt --out t --force",
                             folder.path());
  EXPECT_EQ(full.code, 75);
  EXPECT_EQ(full.err, "sluice: cannot write 't.bin': File too large\n");
  EXPECT_EQ(read_text(folder.path() + "/t.idx"), before);
  EXPECT_EQ(num_files(folder), 5u);
}

TEST(DataCommand, AFullDiskIsTemporaryAndLeavesNothing) {
  const TemporaryFolder folder;
  folder.write("a.txt", std::string(1 << 20, 'x'));
  const std::string disk = folder.path() + "/disk";
  std::filesystem::create_directory(disk);
  // A mount that only these commands see; not everybody may make one.
  const std::string alone = "unshare --map-root-user --mount sh ";
  const std::string mount = "mount -t tmpfs -o size=64k tmpfs '" + disk + "' || exit 1\n";
  if (run_shell(alone + folder.write("mount.sh", mount)).code != 0)
    GTEST_SKIP() << "cannot mount a small disk here";
  const std::string script =
      mount + "'" + SLUICE_BINARY + "' data a.txt --out disk/x\n" + "echo code $?\n" + "ls disk\n";
  const Ran ran = run_shell(alone + folder.write("run.sh", script), folder.path());
  EXPECT_EQ(ran.out, "code 75\n");
  EXPECT_EQ(ran.err, "sluice: cannot write 'disk/x.bin': No space left on device\n");
}

TEST(DataCommand, MistakesAreOneLineWithTheRightCode) {
  const TemporaryFolder folder;
  folder.write("a.txt", "text");
  folder.write("empty.txt", "");
  folder.write("bad.idx", "MMIDIDX");
  folder.write("bad.bin", "");
  std::filesystem::create_directory(folder.path() + "/corpus");
  expect_error(folder, "data", 2,
               "data needs an input: sluice data TEXT --out PREFIX, or --inspect PREFIX");
  expect_error(folder, "data a.txt", 2,
               "--out is missing: sluice data a.txt --out PREFIX writes PREFIX.bin, PREFIX.idx");
  expect_error(folder, "data a.txt --out x --format csv", 2,
               "--format is 'csv': needs text, jsonl or bytes");
  for (const char* format : {"", " --format text"})
    expect_error(folder, std::string("data a.txt --out x --key k") + format, 2,
                 "--key needs --format jsonl");
  expect_error(folder, "data a.txt --out x --tokenizer ''", 2,
               "--tokenizer is '': give it a value or leave it out");
  expect_error(folder, "data a.txt --inspect x", 2,
               "--inspect is given with an input or another flag: it takes neither");
  expect_error(folder, "data bad.bin --out bad", 2, "--out is 'bad': bad.bin is the input itself");
  expect_error(folder, "data corpus --out corpus/x", 2,
               "--out is 'corpus/x', inside the input 'corpus': choose a place outside it");
  expect_error(folder, "data a.txt --out none/x", 2,
               "cannot write 'none/x.bin': No such file or directory");
  expect_error(folder, "data a.txt --out x --format bytes --tokenizer t.json", 2,
               "--format is bytes and --tokenizer is 't.json': raw bytes are their own tokens; "
               "leave one out");
  expect_error(folder, "data none.txt --out x", 2,
               "cannot read 'none.txt': No such file or directory");
  expect_error(folder, "data empty.txt --out x", 3, "'empty.txt' holds no text: nothing to write");
  expect_error(folder, "data corpus --out x", 3, "'corpus' holds no file: nothing to read");
  expect_error(folder, "data a.txt --out x --tokenizer none.json", 2,
               "cannot read 'none.json': No such file or directory");
  expect_error(folder, "data --inspect none", 2,
               "cannot read 'none.idx': No such file or directory");
  expect_error(folder, "data --inspect bad", 3,
               "'bad.idx' has 7 bytes: the header of an .idx file has 34");
  EXPECT_EQ(num_files(folder), 5u);
}

}  // namespace
}  // namespace sluice
