#include "sluice/data/documents.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "sluice/data/token_source.h"
#include "sluice/data/tokenizer.h"
#include "support/run_sluice.h"

namespace sluice {
namespace {

using test::TemporaryFolder;

class Kept : public DocumentSink {
 public:
  void append(std::string_view bytes) override { open += bytes; }
  void end_document() override { documents.push_back(std::exchange(open, "")); }

  std::string open;
  std::vector<std::string> documents;
};

std::vector<std::string> documents_of(const std::string& path, const DocumentOptions& options = {},
                                      DocumentCounts* counts = nullptr) {
  Kept kept;
  const DocumentCounts counted = read_documents(document_files(path), options, kept);
  if (counts) *counts = counted;
  EXPECT_EQ(kept.open, "");
  return kept.documents;
}

std::string error_of(const std::string& line) {
  try {
    jsonl_text(line, "text", "f:7");
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    return error.what();
  }
  return "no error";
}

TEST(Tokenizer, AnyBytesComeBackTheSame) {
  std::string bytes;
  for (int n = 0; n < 256; ++n)
    bytes.push_back(static_cast<char>(n));
  std::vector<std::int32_t> tokens = encode_bytes(bytes);
  EXPECT_EQ(tokens[255], 255);
  tokens.push_back(kEndOfDocument);
  EXPECT_EQ(decode_bytes(tokens), bytes);
}

TEST(Documents, AFileIsOneDocumentByteForByte) {
  const TemporaryFolder folder;
  const std::string text = "\xEF\xBB\xBFone\r\n\n\ntwo";
  EXPECT_EQ(documents_of(folder.write("a.txt", text)), std::vector<std::string>{text});
  const std::string large(1 << 20, 'x');  // several pieces
  EXPECT_EQ(documents_of(folder.write("b.txt", large)), std::vector<std::string>{large});
}

TEST(Documents, AFolderIsItsFilesSortedWithoutHiddenOnes) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() + "/b");
  std::filesystem::create_directories(folder.path() + "/.git");
  folder.write("c.txt", "3");
  folder.write("b/x", "2");
  folder.write("a.txt", "1");
  folder.write("empty", "");
  folder.write(".hidden", "no");
  folder.write(".git/config", "no");
  folder.write("d.jsonl", "{\"text\":\"4\"}\n{\"text\":\"5\"}\n");
  DocumentCounts counts;
  EXPECT_EQ(documents_of(folder.path(), {}, &counts),
            (std::vector<std::string>{"1", "2", "3", "4", "5"}));
  EXPECT_EQ(counts.documents, 5);
  EXPECT_EQ(counts.empty, 1);
  EXPECT_EQ(counts.bytes, 5);
}

TEST(Documents, AMissingPathIsAMistakeAndAnEmptyFolderIsBadData) {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "x");
  const std::string empty = folder.path() + "/empty";
  std::filesystem::create_directory(empty);
  for (const auto& [path, code] :
       {std::pair{empty, ExitCode::bad_data}, std::pair{folder.path() + "/none", ExitCode::usage},
        std::pair{file + "/none", ExitCode::usage}}) {
    try {
      documents_of(path);
      FAIL() << path;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), code) << path;
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
    }
  }
}

// What is said about a file with these bytes; "" where it is read.
std::string refusal(const std::string& bytes, const char* name = "a.txt",
                    TextFormat format = TextFormat::by_name) {
  const TemporaryFolder folder;
  DocumentOptions options;
  options.format = format;
  try {
    const auto documents = documents_of(folder.write(name, bytes), options);
    if (!reads_as_jsonl(name, format)) {
      EXPECT_EQ(documents, std::vector<std::string>{bytes});
    }
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    return error.what();
  }
  return "";
}

TEST(Documents, AFileThatIsNotUtf8TextIsRefusedByItsFirstWrongByte) {
  const std::pair<std::string, const char*> refused[] = {
      {std::string("PAR1\x15\0", 6), "byte 5 is 0x00"},  // a table of Parquet's
      {"\x1f\x8b\x08", "byte 1 is 0x8b"},                // gzip
      {std::string("\xff\xfe"
                   "a\0",
                   4),
       "byte 0 is 0xff"},                // UTF-16
      {"gr\xfc\xdf", "byte 2 is 0xfc"},  // Latin-1
      {"cut \xc3", "byte 4 is 0xc3"},    // the file ends in a character
      {std::string((64 << 10) - 1, 'x') + '\0', "byte 65535 is 0x00"},
      {std::string((64 << 10) - 1, 'x') + "\xe2\x82x", "byte 65535 is 0xe2"},
  };
  for (const auto& [bytes, words] : refused)
    for (const char* name : {"a.txt", "a.jsonl"}) {
      const std::string why = refusal(bytes, name);
      EXPECT_NE(why.find(words), std::string::npos) << why;
      EXPECT_NE(why.find(std::string(name) + "' is not UTF-8 text"), std::string::npos) << why;
      EXPECT_NE(why.find("data.format = \"bytes\""), std::string::npos) << why;
    }
}

TEST(Documents, ACharacterAcrossTheEndOfWhatIsCheckedIsText) {
  for (std::size_t before = 1; before <= 4; ++before)
    EXPECT_EQ(refusal(std::string((64 << 10) - before, 'x') + "\xf0\x9f\x98\x80 more"), "");
  EXPECT_EQ(refusal(std::string((64 << 10) - 4, 'x') + "\xf0\x9f\x98\x80"), "");
  EXPECT_EQ(refusal(std::string(64 << 10, 'x') + "\xff"), "");  // beyond it nobody looks
}

TEST(Documents, BytesAreTakenAsTheyAre) {
  std::string all;
  for (int byte = 255; byte >= 0; --byte)
    all.push_back(static_cast<char>(byte));
  for (const char* name : {"a.txt", "a.gz"})
    EXPECT_EQ(refusal(all, name, TextFormat::bytes), "");
}

TEST(Documents, JsonlTakesBomCrlfBlankLinesAndALastLineWithoutNewline) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("a.jsonl",
                   "\xEF\xBB\xBF{\"text\":\"one\"}\r\n"
                   "\r\n\n"
                   "  {\"id\":1.5,\"meta\":{\"text\":\"not this\",\"k\":[1,{\"text\":2}]},"
                   "\"text\":\"t\\u00e4\\ud83d\\ude00\\u0000\\n\"}\n"
                   "{\"text\":\"\"}\n"
                   "{\"text\":\"last\",\"more\":null}");
  DocumentCounts counts;
  const std::string second("t\xc3\xa4\xf0\x9f\x98\x80\0\n", 9);
  EXPECT_EQ(documents_of(path, {}, &counts), (std::vector<std::string>{"one", second, "last"}));
  EXPECT_EQ(counts.empty, 1);
}

TEST(Documents, TheKeyCanBeChosen) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.txt", "{\"text\":1,\"content\":\"x\"}\n");
  DocumentOptions options;
  options.format = TextFormat::jsonl;
  options.key = "content";
  EXPECT_EQ(documents_of(path, options), std::vector<std::string>{"x"});
}

TEST(Documents, ErrorsInJsonlNameFileAndLine) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.jsonl", "{\"text\":\"x\"}\n\n{\"text\":7}\n");
  try {
    documents_of(path);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()), path + ":3: \"text\" is a number: needs a string");
  }
}

TEST(Documents, EveryMistakeInALineIsNamed) {
  EXPECT_EQ(error_of("{\"text\":\"fine\"}"), "no error");
  EXPECT_EQ(error_of("{\"other\":\"x\"}"),
            "f:7: no key \"text\": sluice data --key NAME names the key that holds the text");
  EXPECT_EQ(error_of("{\"a\":{\"text\":\"x\"}}"), error_of("{\"other\":\"x\"}"));
  EXPECT_EQ(error_of("{\"text\":null}"), "f:7: \"text\" is null: needs a string");
  EXPECT_EQ(error_of("{\"text\":[\"x\"]}"), "f:7: \"text\" is a list: needs a string");
  EXPECT_EQ(error_of("{\"text\":{\"text\":\"x\"}}"), "f:7: \"text\" is an object: needs a string");
  EXPECT_EQ(error_of("{\"text\":\"a\",\"text\":\"b\"}"), "f:7: the key \"text\" appears twice");
  EXPECT_EQ(error_of("[]"), "f:7: the line is a list: needs an object");
  EXPECT_EQ(error_of("\"text\""), "f:7: the line is a string: needs an object");
  EXPECT_EQ(error_of("\xEF\xBB\xBF{\"text\":\"x\"}"),
            "f:7: begins with a byte order mark: allowed only at the start of a file");
  for (const char* broken :
       {"{\"text\":\"x\"", "{\"text\":\"x\"} {}", "{'text':\"x\"}", "{\"text\":\"x\",}",
        "{\"text\":\"\xff\"}", "{\"text\":\"\\ud800\"}", "{\"text\":\"a\tb\"}",
        "{\"text\":\"x\",\"n\":1e999}", "{\"text\":\"x\",\"n\":NaN}", "{\"text\":\"x\"}//c", "x"})
    EXPECT_EQ(error_of(broken).find("f:7: column "), 0u) << broken << ": " << error_of(broken);
}

TEST(Documents, DepthIsBoundedAndMessagesStayShort) {
  const std::string deep(1000000, '[');
  EXPECT_EQ(error_of("{\"x\":" + deep), "f:7: nested more than 256 levels deep");
  EXPECT_LT(error_of("{\"text\":\"" + std::string(1 << 20, 'x')).size(), 200u);
  EXPECT_LT(error_of("{\"n\":" + std::string(1 << 20, '9') + "}").size(), 250u);
}

TEST(Documents, ALineOfTenMegabytesIsOneDocument) {
  const TemporaryFolder folder;
  const std::string text(10 << 20, 'y');
  const std::string path =
      folder.write("a.jsonl", "{\"text\":\"" + text + "\"}\n{\"text\":\"z\"}\n");
  EXPECT_EQ(documents_of(path), (std::vector<std::string>{text, "z"}));
}

TEST(Documents, ProgressEndsAtTheWholeInput) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.txt", std::string(1 << 20, 'x'));
  std::int64_t last = 0, whole = 0;
  DocumentOptions options;
  options.progress = [&](std::int64_t done, std::int64_t total) {
    EXPECT_GT(done, last);
    last = done;
    whole = total;
  };
  documents_of(path, options);
  EXPECT_EQ(last, 1 << 20);
  EXPECT_EQ(whole, 1 << 20);
}

TEST(TokenSource, TextGivesBytesAndAnEndPerDocument) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"\\u00ff\"}\n");
  const auto source = open_token_source(path, DataFormat::automatic);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(source->num_tokens()));
  source->read(0, tokens);
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{'a', 'b', 256, 0xc3, 0xbf, 256}));
  EXPECT_EQ(source->document_starts(), (std::vector<std::int64_t>{0, 3, 6}));
  EXPECT_EQ(source->name(), path);
}

TEST(TokenSource, FormatsAreFoundByNameAndByFile) {
  EXPECT_EQ(parse_data_format("megatron"), DataFormat::megatron);
  try {
    parse_data_format("jsnl");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("did you mean 'jsonl'?"), std::string::npos);
  }
  EXPECT_EQ(indexed_prefix("a/b.idx"), "a/b");
  EXPECT_EQ(indexed_prefix("a/b.bin"), "a/b");
  EXPECT_EQ(indexed_prefix("a/b"), "a/b");
}

}  // namespace
}  // namespace sluice
