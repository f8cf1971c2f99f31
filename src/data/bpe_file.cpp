// tokenizer.json -> BpeTokenizer.
#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "sluice/base/text.h"
#include "sluice/data/bpe.h"
#include "sluice/data/bytes.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxTokens = 1 << 24;

// The library alone would silently keep the last of two equal keys, and follow any depth.
Json parse(std::string_view text, const std::string& path) {
  constexpr int kMaxDepth = 32;
  std::vector<std::set<std::string>> keys;
  const auto look = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) throw bad_data("{}: nested more than {} levels deep", path, kMaxDepth);
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw bad_data("{}: the key {} appears twice", path, json_quote(parsed.get<std::string>()));
    return true;
  };
  try {
    return Json::parse(text, look);
  } catch (const Json::exception& error) {
    throw bad_data("{}: not JSON: {}", path, error.what());
  }
}

// A member that is there and not null.
const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_of(const Json& object, const char* key) {
  const Json* value = member(object, key);
  return value && value->is_string() ? value->get<std::string>() : "";
}

bool is_true(const Json& object, const char* key) {
  const Json* value = member(object, key);
  return value && *value == true;
}

// The characters that stand for bytes in the file: printable ones for themselves, the others, in
// their order, from U+0100 on. By their UTF-8.
std::map<std::string, char, std::less<>> byte_characters() {
  std::map<std::string, char, std::less<>> out;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    const unsigned code = printable ? byte : next++;
    std::string utf8;
    if (code >= 0x80) {
      utf8 += static_cast<char>(0xC0 | code >> 6);
      utf8 += static_cast<char>(0x80 | (code & 0x3F));
    } else {
      utf8 += static_cast<char>(code);
    }
    out[utf8] = static_cast<char>(byte);
  }
  return out;
}

}  // namespace

class BpeTokenizer::Builder {
 public:
  Builder(BpeTokenizer& out, const Json& file, const std::string& path)
      : out_(out), file_(file), path_(path) {}

  void build() {
    if (!file_.is_object()) fail("needs to be an object");
    if (const Json* normalizer = member(file_, "normalizer"))
      fail(fmt::format("normalizer is {}: only files without a normalizer are supported",
                       json_quote(text_of(*normalizer, "type"))));
    read_pattern();
    const Json* model = member(file_, "model");
    if (!model) fail("has no model");
    read_model(*model);
    read_merges(*model);
    read_added();
    for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|eot_id|>", "<eos>"})
      if (const auto found = added_.find(name); found != added_.end()) {
        out_.end_of_document_ = found->second;
        break;
      }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw bad_data("{}: {}", path_, what); }

  void check_byte_level(const Json& step) const {
    if (is_true(step, "add_prefix_space"))
      fail("pre_tokenizer.add_prefix_space is true: only files that add no space are supported");
  }

  // ByteLevel alone cuts by GPT-2's expression; behind a Split it only says that bytes are meant.
  void read_pattern() {
    const Json* first = member(file_, "pre_tokenizer");
    if (!first) fail("has no pre_tokenizer: only byte-level files are supported");
    if (text_of(*first, "type") == "ByteLevel") {
      check_byte_level(*first);
      const Json* use_regex = member(*first, "use_regex");
      if (use_regex && *use_regex == false)
        fail("pre_tokenizer.use_regex is false: nothing would split the text into words");
      return;
    }
    const Json* steps = member(*first, "pretokenizers");
    if (text_of(*first, "type") != "Sequence" || !steps || !steps->is_array() ||
        steps->size() != 2 || text_of(steps->at(0), "type") != "Split" ||
        text_of(steps->at(1), "type") != "ByteLevel")
      fail(fmt::format(
          "pre_tokenizer is {}: only ByteLevel (GPT-2) and a Sequence of Split and ByteLevel "
          "(Llama 3) are supported",
          json_quote(text_of(*first, "type"))));
    const Json& split = steps->at(0);
    check_byte_level(steps->at(1));
    if (const Json* use_regex = member(steps->at(1), "use_regex");
        !use_regex || *use_regex != false)
      fail("pre_tokenizer splits twice: use_regex of ByteLevel needs to be false after a Split");
    if (text_of(split, "behavior") != "Isolated" || is_true(split, "invert"))
      fail("pre_tokenizer's Split needs behavior \"Isolated\" and invert false");
    const Json* pattern = member(split, "pattern");
    const std::string regex = pattern ? text_of(*pattern, "Regex") : "";
    for (const WordPattern known : {WordPattern::gpt2, WordPattern::llama3})
      if (regex == pattern_text(known)) {
        out_.pattern_ = known;
        return;
      }
    fail(fmt::format("pre_tokenizer's pattern is {}: only GPT-2's and Llama 3's are supported",
                     json_quote(regex.substr(0, 80))));
  }

  void read_model(const Json& model) {
    const std::string type = text_of(model, "type");
    const Json* vocab = member(model, "vocab");
    // Old files have no type; only BPE has merges.
    if (type.empty() ? !member(model, "merges") : type != "BPE")
      fail(fmt::format("model.type is {}: only byte-level BPE is supported", json_quote(type)));
    if (is_true(model, "byte_fallback"))
      fail("model.byte_fallback is true: only byte-level BPE is supported, not BPE on characters");
    if (const Json* dropout = member(model, "dropout"); dropout && *dropout != 0)
      fail("model.dropout is set: encoding would be random");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!text_of(model, key).empty())
        fail(fmt::format("model.{} is {}: only byte-level BPE is supported", key,
                         json_quote(text_of(model, key))));
    out_.whole_words_first_ = is_true(model, "ignore_merges");
    if (!vocab || !vocab->is_object()) fail("has no model.vocab");
    for (const auto& [word, number] : vocab->items()) {
      const std::int32_t token = number_of(number, word);
      const std::optional<std::string> bytes = bytes_of(word);
      by_name_[word] = token;
      put(token, bytes ? *bytes : word, word);
      if (bytes) out_.words_[*bytes] = token;
    }
    out_.byte_tokens_.assign(256, -1);
    for (const auto& [character, byte] : characters_) {
      const auto found = by_name_.find(character);
      if (found == by_name_.end())
        fail(
            fmt::format("model.vocab has no token for the byte {:#04x}: only byte-level files, "
                        "which have all 256, are supported",
                        static_cast<unsigned char>(byte)));
      out_.byte_tokens_[static_cast<unsigned char>(byte)] = found->second;
    }
  }

  void read_merges(const Json& model) {
    const Json* merges = member(model, "merges");
    if (!merges || !merges->is_array()) fail("has no model.merges");
    std::int32_t rank = 0;
    for (const Json& merge : *merges) {
      const auto [left, right] = parts_of(merge, rank);
      const std::int32_t a = known(left, rank), b = known(right, rank);
      const std::int32_t joined = known(left + right, rank);
      const auto key = static_cast<std::uint64_t>(a) << 32 | static_cast<std::uint32_t>(b);
      out_.merges_.insert_or_assign(key, Merge{rank, joined});
      ++rank;
    }
  }

  std::pair<std::string, std::string> parts_of(const Json& merge, std::int32_t rank) const {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      const std::size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
        return {text.substr(0, space), text.substr(space + 1)};
    }
    fail(fmt::format("model.merges[{}] is not a pair", rank));
  }

  std::int32_t known(const std::string& word, std::int32_t rank) const {
    const auto found = by_name_.find(word);
    if (found == by_name_.end())
      fail(fmt::format("model.merges[{}] has {}, which is not in model.vocab", rank,
                       json_quote(word)));
    return found->second;
  }

  void read_added() {
    const Json* list = member(file_, "added_tokens");
    if (!list) return;
    if (!list->is_array()) fail("added_tokens is not a list");
    for (const Json& entry : *list) {
      const std::string content = text_of(entry, "content");
      const Json* number = member(entry, "id");
      if (content.empty() || !number) fail("added_tokens has an entry without content or id");
      const std::int32_t token = number_of(*number, content);
      for (const char* key : {"lstrip", "rstrip", "single_word"})
        if (is_true(entry, key))
          fail(fmt::format("added token {} has {} set, which is not supported", json_quote(content),
                           key));
      if (const auto same = by_name_.find(content); same == by_name_.end() || same->second != token)
        put(token, content, content);
      out_.tokens_[static_cast<std::size_t>(token)] = content;
      if (!added_.emplace(content, token).second)
        fail(fmt::format("added token {} appears twice", json_quote(content)));
      (is_true(entry, "normalized") ? out_.added_then_ : out_.added_first_)
          .push_back({content, token});
    }
    for (std::vector<Added>* added : {&out_.added_first_, &out_.added_then_})
      std::stable_sort(added->begin(), added->end(), [](const Added& a, const Added& b) {
        return a.content.size() > b.content.size();
      });
  }

  std::int32_t number_of(const Json& number, const std::string& word) const {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() >= kMaxTokens)
      fail(fmt::format("token {} has the number {}: needs a whole number from 0 to {}",
                       json_quote(word), number.dump(), kMaxTokens - 1));
    return number.get<std::int32_t>();
  }

  void put(std::int32_t token, std::string bytes, const std::string& word) {
    const auto at = static_cast<std::size_t>(token);
    if (at >= out_.tokens_.size()) out_.tokens_.resize(at + 1);
    if (!out_.tokens_[at].empty())
      fail(fmt::format("tokens {} and {} both have the number {}", json_quote(out_.tokens_[at]),
                       json_quote(word), token));
    out_.tokens_[at] = std::move(bytes);
  }

  // What the characters of a word stand for; nothing where one stands for no byte.
  std::optional<std::string> bytes_of(std::string_view word) const {
    std::string bytes;
    while (!word.empty()) {
      const std::size_t length = utf8_length(word);
      const auto found = characters_.find(word.substr(0, length));
      if (found == characters_.end()) return std::nullopt;
      bytes += found->second;
      word.remove_prefix(length);
    }
    return bytes;
  }

  BpeTokenizer& out_;
  const Json& file_;
  const std::string& path_;
  const std::map<std::string, char, std::less<>> characters_ = byte_characters();
  std::unordered_map<std::string, std::int32_t> by_name_;
  std::map<std::string, std::int32_t> added_;
};

BpeTokenizer::BpeTokenizer(std::string_view json, const std::string& path) {
  const Json file = parse(json, path);
  Builder(*this, file, path).build();
}

std::shared_ptr<const BpeTokenizer> open_tokenizer(const std::string& path) {
  constexpr std::int64_t kMaxBytes = 1 << 28;
  const std::unique_ptr<Bytes> file = open_file(path);
  if (file->size() > kMaxBytes)
    throw bad_data("{} has {} bytes: a tokenizer.json has at most {}", path, file->size(),
                   kMaxBytes);
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  file->read(0, std::as_writable_bytes(std::span(text)));
  return std::make_shared<const BpeTokenizer>(text, path);
}

}  // namespace sluice
