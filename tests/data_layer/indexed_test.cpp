#include "sluice/data/indexed.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "support/golden.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

using test::read_text;
using test::TemporaryFolder;

// The published layout: u16, lengths 3, 2, 1, two documents of 2 and 1 sequences.
constexpr std::string_view kGolden =
    "4d4d494449445800000100000000000000080300000000000000030000000000000003000000020000000100000000"
    "00"
    "0000000000000600000000000000"
    "0a00000000000000000000000000000002000000000000000300000000000000";

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t n = 0; n + 1 < hex.size(); n += 2)
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(n, 2)), nullptr, 16)));
  return bytes;
}

template <typename T>
std::string patched(std::size_t offset, T value) {
  std::string bytes = from_hex(kGolden);
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
  return bytes;
}

std::string error_of(const std::string& idx, std::int64_t bin_bytes = 12) {
  try {
    read_token_index(MemoryBytes(idx, "x.idx"), bin_bytes);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    return error.what();
  }
  return "no error";
}

std::vector<std::int32_t> all_tokens(const IndexedTokens& tokens) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(tokens.index().num_tokens));
  tokens.read(0, out);
  return out;
}

// 94 bytes: lengths at 34, offsets at 46, boundaries at 70.
TEST(Indexed, TheGoldenIndexIsRead) {
  const std::string bytes = from_hex(kGolden);
  ASSERT_EQ(bytes.size(), 94u);
  const TokenIndex index = read_token_index(MemoryBytes(bytes), 12);
  EXPECT_EQ(index.type, ItemType::u16);
  EXPECT_EQ(index.num_sequences, 3);
  EXPECT_EQ(index.num_tokens, 6);
  EXPECT_EQ(index.document_starts, (std::vector<std::int64_t>{0, 5, 6}));
}

TEST(Indexed, TheWriterMakesTheGoldenBytes) {
  const TemporaryFolder folder;
  const std::string prefix = folder.path() + "/x";
  // Sequences of at most three tokens cut the first document into 3 and 2.
  IndexedWriter writer(prefix, {.type = ItemType::u16, .max_sequence_tokens = 3});
  writer.append(std::vector<std::int32_t>{1, 2});
  writer.append(std::vector<std::int32_t>{3, 4, 65499});
  writer.end_document();
  writer.append(std::vector<std::int32_t>{6});
  writer.end_document();
  EXPECT_FALSE(std::filesystem::exists(prefix + ".bin"));
  writer.commit();
  EXPECT_EQ(read_text(prefix + ".idx"), from_hex(kGolden));
  EXPECT_EQ(read_text(prefix + ".bin"), from_hex("010002000300"
                                                 "0400dbff0600"));
  EXPECT_EQ(all_tokens(IndexedTokens(prefix)), (std::vector<std::int32_t>{1, 2, 3, 4, 65499, 6}));
}

TEST(Indexed, EveryItemTypeGivesTheSameTokens) {
  const TemporaryFolder folder;
  const auto pair = [&](std::uint8_t code, const std::string& bin) {
    std::string idx = patched<std::uint8_t>(17, code);
    const auto width = static_cast<std::int64_t>(bin.size()) / 6;
    for (const auto& [sequence, tokens] : {std::pair{0, 0}, std::pair{1, 3}, std::pair{2, 5}}) {
      const std::int64_t offset = tokens * width;
      std::memcpy(idx.data() + 46 + 8 * sequence, &offset, 8);
    }
    folder.write("y.idx", idx);
    folder.write("y.bin", bin);
    return folder.path() + "/y";
  };
  const std::vector<std::int32_t> expected = {7, 0, 100, 3, 4, 5};
  const std::vector<std::pair<std::uint8_t, int>> types = {{1, 1}, {2, 1}, {3, 2},
                                                           {4, 4}, {5, 8}, {8, 2}};
  for (const auto& [code, width] : types) {
    std::string bin;
    for (const std::int32_t token : expected) {
      bin.push_back(static_cast<char>(token));
      bin.append(static_cast<std::size_t>(width) - 1, '\0');
    }
    EXPECT_EQ(all_tokens(IndexedTokens(pair(code, bin))), expected) << int{code};
  }
  const IndexedTokens negative(pair(2, std::string("\1\1\1\1\xff\1", 6)));
  try {
    all_tokens(negative);
    FAIL() << "read a negative token";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_NE(std::string(error.what()).find("token 4 is -1"), std::string::npos) << error.what();
  }
}

TEST(Indexed, ManyDocumentsRoundTripInPieces) {
  const TemporaryFolder folder;
  const std::string prefix = folder.path() + "/x";
  IndexedWriter writer(prefix, {.type = ItemType::i32});
  std::vector<std::int32_t> all;
  std::vector<std::int64_t> starts = {0};
  for (std::int32_t d = 0; d < 20000; ++d) {  // several buffers of the reader
    const std::vector<std::int32_t> document(static_cast<std::size_t>(d % 5), d * 1000);
    all.insert(all.end(), document.begin(), document.end());
    starts.push_back(static_cast<std::int64_t>(all.size()));
    writer.append(document);
    writer.end_document();
  }
  writer.commit();
  const IndexedTokens tokens(prefix);
  EXPECT_EQ(tokens.index().document_starts, starts);
  EXPECT_EQ(all_tokens(tokens), all);
  std::vector<std::int32_t> part(7);
  tokens.read(12345, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 12345));
}

TEST(Indexed, EveryBadHeaderIsNamedWithItsOffset) {
  EXPECT_EQ(error_of(""), "'x.idx' has 0 bytes: the header of an .idx file has 34");
  EXPECT_EQ(error_of(from_hex(kGolden).substr(0, 33)),
            "'x.idx' has 33 bytes: the header of an .idx file has 34");
  EXPECT_EQ(error_of(patched(3, 'X')),
            "'x.idx' byte 0: does not begin with MMIDIDX: not a Megatron .idx file");
  EXPECT_EQ(error_of(patched<std::uint64_t>(9, 2)),
            "'x.idx' byte 9: version is 2: only version 1 is read");
  EXPECT_EQ(error_of(patched<std::uint64_t>(9, std::uint64_t{1} << 56)),
            "'x.idx' byte 9: version is big-endian: only little-endian files are read");
  for (const int code : {0, 9, 255})
    EXPECT_EQ(error_of(patched(17, static_cast<std::uint8_t>(code))),
              fmt::format("'x.idx' byte 17: item type is {}: needs 1 to 5, or 8", code));
  EXPECT_EQ(error_of(patched<std::uint8_t>(17, 7)),
            "'x.idx' byte 17: item type is 7 (f32): tokens are whole numbers");
}

TEST(Indexed, CountsAreHeldAgainstTheSizeOfTheFile) {
  for (const std::uint64_t huge : {std::uint64_t{1} << 61, ~std::uint64_t{0}}) {
    EXPECT_EQ(error_of(patched(18, huge)),
              fmt::format("'x.idx' byte 18: {} sequences need 12 bytes each, and the file has 94: "
                          "it is truncated or damaged",
                          huge));
    EXPECT_EQ(error_of(patched(26, huge)),
              fmt::format("'x.idx' byte 26: {} document boundaries need 8 bytes each, and the file "
                          "has 94: it is truncated or damaged",
                          huge));
  }
  EXPECT_EQ(error_of(patched<std::uint64_t>(26, 0)),
            "'x.idx' byte 26: 0 document boundaries: needs one more than documents");
  const std::string sizes = "3 sequences and 3 document boundaries need 94 (or 97 with modes)";
  EXPECT_EQ(error_of(from_hex(kGolden) + "x"), "'x.idx' has 95 bytes: " + sizes);
  EXPECT_EQ(error_of(from_hex(kGolden).substr(0, 93)), "'x.idx' has 93 bytes: " + sizes);
}

TEST(Indexed, EveryBadEntryIsNamedWithBothValues) {
  EXPECT_EQ(error_of(patched<std::int32_t>(38, -2)),
            "'x.idx' byte 38: sequence 1 has length -2: needs 0 or more");
  for (const std::int64_t wrong : {-6, 7, 1 << 30})
    EXPECT_EQ(error_of(patched(54, wrong)),
              fmt::format("'x.idx' byte 54: sequence 1 begins at byte {} of the .bin file: the "
                          "lengths before it sum to 6",
                          wrong));
  EXPECT_EQ(error_of(from_hex(kGolden), 11),
            "'x.idx' byte 42: sequence 2 ends at byte 12 of the .bin file, which has 11: the two "
            "files are not a pair, or the .bin file is truncated");
  EXPECT_NE(error_of(from_hex(kGolden), 0).find("which has 0"), std::string::npos);
  EXPECT_EQ(error_of(patched<std::int64_t>(70, 1)),
            "'x.idx' byte 70: the first document begins at sequence 1: needs 0");
  EXPECT_EQ(error_of(patched<std::int64_t>(78, -1)),
            "'x.idx' byte 78: document boundary 1 is -1, after 0: boundaries must not decrease");
  EXPECT_EQ(error_of(patched<std::int64_t>(78, 4)),
            "'x.idx' byte 78: document boundary 1 is 4: there are only 3 sequences");
  EXPECT_EQ(error_of(patched<std::int64_t>(86, 1)),
            "'x.idx' byte 86: document boundary 2 is 1, after 2: boundaries must not decrease");
  EXPECT_EQ(error_of(patched<std::int64_t>(86, 2)),
            "'x.idx' byte 86: the last document ends at sequence 2: needs 3");
}

TEST(Indexed, ModesAreReadAndOnlyTextIsTaken) {
  const std::string golden = from_hex(kGolden);
  EXPECT_EQ(error_of(golden + std::string(3, '\0')), "no error");
  EXPECT_EQ(error_of(golden + std::string("\0\1\0", 3)),
            "'x.idx' byte 95: sequence 1 has mode 1: only text (mode 0) is read");
}

TEST(Indexed, NoSequencesAtAllIsAnEmptyDataSet) {
  const std::string header = from_hex(kGolden).substr(0, 18);
  const std::string empty =
      header + std::string(8, '\0') + std::string("\1\0\0\0\0\0\0\0", 8) + std::string(8, '\0');
  const TokenIndex index = read_token_index(MemoryBytes(empty), 0);
  EXPECT_EQ(index.num_tokens, 0);
  EXPECT_EQ(index.document_starts, std::vector<std::int64_t>{0});
}

TEST(Indexed, AFileThatShrinksWhileItIsReadIsAnError) {
  const TemporaryFolder folder;
  folder.write("x.idx", from_hex(kGolden));
  const std::string bin = folder.write("x.bin", std::string(12, '\1'));
  const IndexedTokens tokens(folder.path() + "/x");
  std::filesystem::resize_file(bin, 5);
  try {
    all_tokens(tokens);
    FAIL() << "read tokens that are gone";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_EQ(
        std::string(error.what()),
        "'" + bin + "' ends at byte 5: 12 bytes were expected at byte 0; the file is truncated");
  }
}

// Says that it is whole, and ends early.
class Shrunk : public MemoryBytes {
 public:
  Shrunk(std::string_view whole, std::size_t left)
      : MemoryBytes(whole.substr(0, left), "x.idx"),
        size_(static_cast<std::int64_t>(whole.size())) {}
  std::int64_t size() const override { return size_; }

 private:
  std::int64_t size_;
};

TEST(Indexed, AnIndexThatShrinksAnywhereWhileItIsReadIsAnError) {
  const std::string golden = from_hex(kGolden);
  for (std::size_t left = 0; left < golden.size(); ++left) {
    try {
      read_token_index(Shrunk(golden, left), 12);
      ADD_FAILURE() << "read an index of " << left << " bytes";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_NE(std::string(error.what()).find("the file is truncated"), std::string::npos);
    }
  }
}

TEST(Indexed, AMissingFileAFolderAndAFifoAreRefused) {
  const TemporaryFolder folder;
  const std::string prefix = folder.path() + "/x";
  ExitCode code = ExitCode::ok;
  const auto error = [&] {
    try {
      IndexedTokens tokens(prefix);
    } catch (const UserError& refused) {
      code = refused.code();
      return std::string(refused.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error(), "cannot read '" + prefix + ".idx': No such file or directory");
  folder.write("x.idx", from_hex(kGolden));
  EXPECT_EQ(error(), "cannot read '" + prefix + ".bin': No such file or directory");
  EXPECT_EQ(code, ExitCode::usage);
  std::filesystem::create_directory(prefix + ".bin");
  EXPECT_EQ(error(), "cannot read '" + prefix + ".bin': it is not a regular file");
  EXPECT_EQ(code, ExitCode::bad_data);
  std::filesystem::remove(prefix + ".bin");
  ASSERT_EQ(test::run_shell("mkfifo '" + prefix + ".bin'").code, 0);
  EXPECT_EQ(error(), "cannot read '" + prefix + ".bin': it is not a regular file");
}

TEST(Indexed, AWriterThatIsDroppedLeavesTheOldPairAlone) {
  const TemporaryFolder folder;
  folder.write("x.idx", "old");
  folder.write("x.bin", "old");
  {
    IndexedWriter writer(folder.path() + "/x");
    writer.append(std::vector<std::int32_t>(1 << 20, 1));
    writer.end_document();
  }
  EXPECT_EQ(read_text(folder.path() + "/x.idx"), "old");
  EXPECT_EQ(read_text(folder.path() + "/x.bin"), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(Indexed, TheTokensAreReplacedOnlyOnceTheOldIndexIsGone) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() + "/x.idx");  // cannot be removed as a file
  folder.write("x.bin", "old");
  IndexedWriter writer(folder.path() + "/x");
  EXPECT_THROW(writer.commit(), UserError);
  EXPECT_EQ(read_text(folder.path() + "/x.bin"), "old");
}

}  // namespace
}  // namespace sluice
