// Byte-level byte-pair encoding as a tokenizer.json (Hugging Face's form) describes it: the file's
// own vocabulary, merges and special tokens. Any bytes can be encoded, and decode(encode(x)) == x.
//
// Encoding is that of the Python package without its post-processor: nothing is added at either
// end. Text is not normalised; a file that asks for it is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sluice/data/pretokenize.h"

namespace sluice {

// Safe to use from several threads at once.
class BpeTokenizer {
 public:
  // From the text of a tokenizer.json; `path` is for messages. Throws UserError (3) that names what
  // cannot be used: another model than BPE, a normalizer, another pre-tokenizer, a damaged file.
  BpeTokenizer(std::string_view json, const std::string& path);

  // Special tokens that stand in the text are themselves.
  std::vector<std::int32_t> encode(std::string_view text) const;

  // The bytes of a token; none for a number that has no token.
  std::string_view bytes_of(std::int32_t token) const;
  std::string decode(std::span<const std::int32_t> tokens) const;

  std::int32_t vocab_size() const { return static_cast<std::int32_t>(tokens_.size()); }  // numbers
  // The token that ends a document, found by its usual names: <|endoftext|>, <|end_of_text|>, </s>,
  // <|eot_id|>, <eos>. -1: the file has none of them.
  std::int32_t end_of_document() const { return end_of_document_; }

 private:
  struct Merge {
    std::int32_t rank;
    std::int32_t token;
  };
  struct Added {
    std::string content;
    std::int32_t token;
  };
  class Builder;  // reads the file

  void encode_words(std::string_view text, std::vector<std::int32_t>& out) const;
  void encode_word(std::string_view word, std::vector<std::int32_t>& out) const;

  WordPattern pattern_ = WordPattern::gpt2;
  bool whole_words_first_ = false;   // a word that is a token is that, whatever the merges say
  std::vector<std::string> tokens_;  // bytes, by number
  std::unordered_map<std::string, std::int32_t> words_;  // by bytes, without the added ones
  std::unordered_map<std::uint64_t, Merge> merges_;      // by the two tokens
  std::vector<std::int32_t> byte_tokens_;                // 256
  // Longest first, the ones that look at the text before any other do.
  std::vector<Added> added_first_, added_then_;
  std::int32_t end_of_document_ = -1;
};

// Reads the file. Throws UserError (3).
std::shared_ptr<const BpeTokenizer> open_tokenizer(const std::string& path);

}  // namespace sluice
