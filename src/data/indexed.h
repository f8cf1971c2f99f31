// Megatron's indexed data sets: PREFIX.bin holds the tokens of all documents without a gap,
// PREFIX.idx says where sequences and documents begin. A document is one or more sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/data/bytes.h"
#include "sluice/data/output_file.h"

namespace sluice {

inline constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
inline constexpr std::int64_t kIndexHeaderBytes = 34;

// Item types as the file numbers them; floating point (6, 7) cannot hold tokens and is refused.
enum class ItemType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

std::int64_t item_bytes(ItemType type);
std::string_view item_name(ItemType type);

struct TokenIndex {
  ItemType type = ItemType::u16;
  std::int64_t num_sequences = 0;
  std::int64_t num_tokens = 0;
  // Where each document begins, in tokens, and after them num_tokens: never decreasing, at least
  // one entry.
  std::vector<std::int64_t> document_starts;
};

// Reads and proves the bytes of a .idx against the size of its .bin. Allocates no more than the
// boundaries need. Throws UserError (3) with file, offset and both values.
TokenIndex read_token_index(const Bytes& idx, std::int64_t bin_bytes);

// An open pair. Safe to use from several threads at once.
class IndexedTokens {
 public:
  // `prefix` is the path without .bin or .idx. Throws UserError (3).
  explicit IndexedTokens(const std::string& prefix);

  const TokenIndex& index() const { return index_; }
  // Tokens [begin, begin + out.size()). REQUIRES: inside the data. Blocks on the disk. Throws
  // UserError (3) when the file shrank, or a token is negative or beyond 32 bits.
  void read(std::int64_t begin, std::span<std::int32_t> out) const;

 private:
  std::unique_ptr<Bytes> bin_;
  TokenIndex index_;
};

// Writes a pair. The .idx appears last, so that where there is one, the pair is complete.
class IndexedWriter {
 public:
  struct Options {
    ItemType type = ItemType::u16;  // u16 or i32
    // Lengths are 32 bits wide: a longer document becomes several sequences.
    std::int64_t max_sequence_tokens = std::int64_t{1} << 30;
  };

  // Throws UserError: 2, or 75 when the disk is full (as do the other calls).
  explicit IndexedWriter(std::string prefix) : IndexedWriter(std::move(prefix), Options{}) {}
  IndexedWriter(std::string prefix, Options options);

  // More tokens of the present document. REQUIRES: each fits the item type.
  void append(std::span<const std::int32_t> tokens);
  // Ends the present document, which may be empty.
  void end_document();
  // Writes the index and gives both files their names. REQUIRES: called once, last, with no
  // document open. Without it, nothing is left behind.
  void commit();

  std::int64_t num_documents() const { return static_cast<std::int64_t>(boundaries_.size()) - 1; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t bytes() const { return num_tokens_ * item_bytes(options_.type); }  // of the .bin

 private:
  void end_sequence();

  std::string prefix_;
  Options options_;
  OutputFile bin_;
  OutputFile idx_;
  std::vector<std::int32_t> lengths_;           // of the finished sequences
  std::vector<std::int64_t> boundaries_ = {0};  // in sequences
  std::int64_t open_tokens_ = 0;                // of the present sequence
  std::int64_t num_tokens_ = 0;
};

}  // namespace sluice
