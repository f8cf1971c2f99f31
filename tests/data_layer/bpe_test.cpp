// Byte-level BPE against the Python package `tokenizers`: its files, and the numbers it gave.
#include "sluice/data/bpe.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "support/golden.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

std::string file_of(const std::string& name) {
  return std::string(SLUICE_TEST_DATA) + "/tokenizers/" + name;
}

class Bpe : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Files, Bpe, testing::Values("gpt2", "llama3"),
                         [](const auto& file) { return std::string(file.param); });

TEST_P(Bpe, GivesTheNumbersOfTheReference) {
  const auto tokenizer = open_tokenizer(file_of(std::string(GetParam()) + ".json"));
  const std::string expected =
      test::read_text(file_of(std::string(GetParam()) + ".expected.jsonl"));
  int lines = 0;
  for (const std::string_view line : split(expected, '\n')) {
    if (line.empty()) continue;
    const Json row = Json::parse(line);
    const auto text = row["text"].get<std::string>();
    EXPECT_EQ(tokenizer->encode(text), row["ids"].get<std::vector<std::int32_t>>())
        << json_quote(text);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    ++lines;
  }
  EXPECT_GT(lines, 30);
}

TEST_P(Bpe, AnyBytesComeBack) {
  const auto tokenizer = open_tokenizer(file_of(std::string(GetParam()) + ".json"));
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (std::size_t length = random() % 80; text.size() < length;)
      text += static_cast<char>(random() % (round % 2 ? 256 : 128));
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << json_quote(text);
  }
  // One word of a million letters takes no quadratic time.
  const std::string word(1 << 20, 'e');
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(word)), word);
}

TEST_P(Bpe, KnowsItsEndOfDocumentAndItsSize) {
  const auto tokenizer = open_tokenizer(file_of(std::string(GetParam()) + ".json"));
  const bool gpt2 = std::string(GetParam()) == "gpt2";
  EXPECT_EQ(tokenizer->end_of_document(), gpt2 ? 0 : 1);
  EXPECT_EQ(tokenizer->bytes_of(tokenizer->end_of_document()),
            gpt2 ? "<|endoftext|>" : "<|end_of_text|>");
  EXPECT_EQ(tokenizer->vocab_size(), gpt2 ? 420 : 421);
  EXPECT_EQ(tokenizer->bytes_of(-1), "");
  EXPECT_EQ(tokenizer->bytes_of(100000), "");
}

TEST(BpeFile, WhatCannotBeUsedIsNamed) {
  const Json good = Json::parse(test::read_text(file_of("gpt2.json")));
  const auto refusal = [](const Json& file) -> std::string {
    try {
      const BpeTokenizer tokenizer(file.dump(), "tokenizer.json");
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_TRUE(std::string(error.what()).starts_with("tokenizer.json: ")) << error.what();
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(good), "accepted");
  const std::pair<const char*, std::function<void(Json&)>> cases[] = {
      {R"(model.type is "Unigram")", [](Json& f) { f["model"]["type"] = "Unigram"; }},
      {R"(model.type is "WordPiece")", [](Json& f) { f["model"]["type"] = "WordPiece"; }},
      {"byte_fallback", [](Json& f) { f["model"]["byte_fallback"] = true; }},
      {"dropout", [](Json& f) { f["model"]["dropout"] = 0.1; }},
      {"end_of_word_suffix", [](Json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }},
      {R"(normalizer is "NFC")",
       [](Json& f) {
         f["normalizer"] = {{"type", "NFC"}};
       }},
      {"add_prefix_space", [](Json& f) { f["pre_tokenizer"]["add_prefix_space"] = true; }},
      {R"(pre_tokenizer is "Metaspace")",
       [](Json& f) { f["pre_tokenizer"]["type"] = "Metaspace"; }},
      {"has no pre_tokenizer", [](Json& f) { f["pre_tokenizer"] = nullptr; }},
      {"no token for the byte 0x20", [](Json& f) { f["model"]["vocab"].erase("Ġ"); }},
      {"which is not in model.vocab", [](Json& f) { f["model"]["merges"].push_back("a zzz"); }},
      {"is not a pair", [](Json& f) { f["model"]["merges"].push_back("a b c"); }},
      {"is not a pair", [](Json& f) { f["model"]["merges"].push_back(7); }},
      {"both have the number 5", [](Json& f) { f["model"]["vocab"]["zz"] = 5; }},
      {"needs a whole number from 0 to 16777215", [](Json& f) { f["model"]["vocab"]["zz"] = -5; }},
      {"needs a whole number", [](Json& f) { f["model"]["vocab"]["zz"] = 1e12; }},
      {"has lstrip", [](Json& f) { f["added_tokens"][0]["lstrip"] = true; }},
      {"appears twice", [](Json& f) { f["added_tokens"].push_back(f["added_tokens"][0]); }},
      {"has no model", [](Json& f) { f.erase("model"); }},
      {"needs to be an object", [](Json& f) { f = Json::array(); }},
  };
  for (const auto& [word, change] : cases) {
    Json file = good;
    change(file);
    const std::string why = refusal(file);
    EXPECT_NE(why.find(word), std::string::npos) << word << ": " << why;
  }
  const Json split = Json::parse(test::read_text(file_of("llama3.json")));
  Json other = split;
  other["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a-z]+";
  EXPECT_NE(refusal(other).find("pattern is \"[a-z]+\""), std::string::npos);
  other = split;
  other["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true;
  EXPECT_NE(refusal(other).find("splits twice"), std::string::npos);
  EXPECT_THROW(BpeTokenizer(R"({"a": 1, "a": 2})", "x"), UserError);
  EXPECT_THROW(BpeTokenizer(std::string(100000, '['), "x"), UserError);
  EXPECT_THROW(open_tokenizer("nowhere.json"), UserError);
}

}  // namespace
}  // namespace sluice
