// Where training tokens come from: one long run of tokens, and where in it documents begin. Text
// and JSONL are tokenized in memory, and each document is followed by the token that ends one;
// Megatron pairs stay on disk and are used as they are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/config/data_format.h"
#include "sluice/data/bpe.h"
#include "sluice/data/documents.h"

namespace sluice {

// Safe to use from several threads at once.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual const std::string& name() const = 0;  // for messages
  virtual std::int64_t num_tokens() const = 0;
  // Where each document begins, then num_tokens(): never decreasing; equal neighbours are
  // documents without tokens.
  virtual const std::vector<std::int64_t>& document_starts() const = 0;
  // The token that ends every document; -1: not known.
  virtual std::int32_t end_of_document() const { return -1; }
  // Tokens [begin, begin + out.size()), none negative. REQUIRES: inside the data. May block on the
  // disk. Throws UserError (3) when the data cannot be read any more.
  virtual void read(std::int64_t begin, std::span<std::int32_t> out) const = 0;
};

// A source in memory. REQUIRES: tokens that are not negative, and starts as above.
std::unique_ptr<TokenSource> memory_source(std::vector<std::int32_t> tokens,
                                           std::vector<std::int64_t> document_starts,
                                           std::string name = "memory");

// "auto", "text", "jsonl", "bytes" or "megatron". Throws UserError (2) with the nearest name.
DataFormat parse_data_format(std::string_view name);

// Opens data for training; for megatron, `path` may end in .idx or .bin or be the prefix of both.
// Text is read whole, which blocks, and becomes the tokenizer's tokens; without one, bytes. Throws
// UserError: 2 for a missing file, else 3. REQUIRES: no tokenizer for the format bytes.
std::unique_ptr<TokenSource> open_token_source(const std::string& path, DataFormat format,
                                               const BpeTokenizer* tokenizer = nullptr);

// PATH without .bin or .idx.
std::string indexed_prefix(const std::string& path);

}  // namespace sluice
