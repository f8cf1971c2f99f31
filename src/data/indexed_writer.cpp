#include <algorithm>
#include <limits>

#include "sluice/data/indexed.h"

namespace sluice {
namespace {

template <typename T>
void put(OutputFile& file, T value) {
  file.write(std::as_bytes(std::span(&value, 1)));
}

template <typename T>
void put_tokens(OutputFile& file, std::span<const std::int32_t> tokens) {
  std::vector<T> items;
  items.reserve(tokens.size());
  for (const std::int32_t token : tokens) {
    SLUICE_CHECK(token >= 0 && static_cast<std::int64_t>(token) <=
                                   static_cast<std::int64_t>(std::numeric_limits<T>::max()),
                 "token {} does not fit", token);
    items.push_back(static_cast<T>(token));
  }
  file.write(std::as_bytes(std::span(items)));
}

}  // namespace

IndexedWriter::IndexedWriter(std::string prefix, Options options)
    : prefix_(std::move(prefix)),
      options_(options),
      bin_(prefix_ + ".bin"),
      idx_(prefix_ + ".idx") {
  SLUICE_CHECK(options.type == ItemType::u16 || options.type == ItemType::i32,
               "cannot write item type {}", item_name(options.type));
  SLUICE_CHECK(options.max_sequence_tokens > 0 &&
                   options.max_sequence_tokens <= std::numeric_limits<std::int32_t>::max(),
               "sequences of {} tokens", options.max_sequence_tokens);
}

void IndexedWriter::append(std::span<const std::int32_t> tokens) {
  while (!tokens.empty()) {
    if (open_tokens_ == options_.max_sequence_tokens) end_sequence();
    const auto room = static_cast<std::size_t>(options_.max_sequence_tokens - open_tokens_);
    const std::span<const std::int32_t> piece = tokens.first(std::min(room, tokens.size()));
    if (options_.type == ItemType::u16)
      put_tokens<std::uint16_t>(bin_, piece);
    else
      put_tokens<std::int32_t>(bin_, piece);
    open_tokens_ += static_cast<std::int64_t>(piece.size());
    num_tokens_ += static_cast<std::int64_t>(piece.size());
    tokens = tokens.subspan(piece.size());
  }
}

void IndexedWriter::end_sequence() {
  lengths_.push_back(static_cast<std::int32_t>(open_tokens_));
  open_tokens_ = 0;
}

void IndexedWriter::end_document() {
  end_sequence();
  boundaries_.push_back(static_cast<std::int64_t>(lengths_.size()));
}

void IndexedWriter::commit() {
  SLUICE_CHECK(open_tokens_ == 0, "a document of {} tokens is still open", open_tokens_);
  idx_.write(std::as_bytes(std::span(kIndexMagic)));
  put(idx_, std::uint64_t{1});
  put(idx_, static_cast<std::uint8_t>(options_.type));
  put(idx_, static_cast<std::uint64_t>(lengths_.size()));
  put(idx_, static_cast<std::uint64_t>(boundaries_.size()));
  idx_.write(std::as_bytes(std::span(lengths_)));
  std::int64_t offset = 0;
  for (const std::int32_t length : lengths_) {
    put(idx_, offset);
    offset += length * item_bytes(options_.type);
  }
  idx_.write(std::as_bytes(std::span(boundaries_)));
  bin_.flush_to_disk();
  idx_.flush_to_disk();
  // An older pair of this name loses its .idx first: no .idx ever stands beside a foreign .bin.
  remove_file(prefix_ + ".idx");
  bin_.commit();
  idx_.commit();
  flush_folder_of(prefix_);
}

}  // namespace sluice
