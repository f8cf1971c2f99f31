#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "sluice/data/indexed.h"

namespace sluice {
namespace {

template <typename T>
T load(const std::byte* from) {  // the file is little-endian and not aligned
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
T field(const Bytes& bytes, std::int64_t offset) {
  std::byte raw[sizeof(T)];
  bytes.read(offset, raw);
  return load<T>(raw);
}

// One array of the index, read once from front to back.
template <typename T>
class ArrayReader {
 public:
  ArrayReader(const Bytes& bytes, std::int64_t offset, std::int64_t count)
      : bytes_(bytes), offset_(offset), left_(count) {}

  T next() {
    if (position_ == filled_) fill();
    return buffer_[position_++];
  }

 private:
  void fill() {
    SLUICE_CHECK(left_ > 0, "read past the array that ends at byte {}", offset_);
    position_ = 0;
    filled_ =
        static_cast<std::size_t>(std::min(left_, static_cast<std::int64_t>(std::size(buffer_))));
    const auto bytes = std::as_writable_bytes(std::span(buffer_, filled_));
    bytes_.read(offset_, bytes);
    offset_ += static_cast<std::int64_t>(bytes.size());
    left_ -= static_cast<std::int64_t>(filled_);
  }

  const Bytes& bytes_;
  std::int64_t offset_;
  std::int64_t left_;  // not yet in the buffer
  std::size_t position_ = 0;
  std::size_t filled_ = 0;
  T buffer_[2048];
};

ItemType item_type(const Bytes& idx, std::uint8_t code) {
  switch (code) {
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 8: return static_cast<ItemType>(code);
    case 6:
    case 7:
      throw bad_data("'{}' byte 17: item type is {} ({}): tokens are whole numbers", idx.name(),
                     code, code == 6 ? "f64" : "f32");
    default: throw bad_data("'{}' byte 17: item type is {}: needs 1 to 5, or 8", idx.name(), code);
  }
}

struct Header {
  ItemType type;
  std::int64_t num_sequences, num_boundaries;
  bool has_modes;
};

Header read_header(const Bytes& idx) {
  if (idx.size() < kIndexHeaderBytes)
    throw bad_data("'{}' has {} bytes: the header of an .idx file has {}", idx.name(), idx.size(),
                   kIndexHeaderBytes);
  char magic[kIndexMagic.size()];
  idx.read(0, std::as_writable_bytes(std::span(magic)));
  if (std::string_view(magic, kIndexMagic.size()) != kIndexMagic)
    throw bad_data("'{}' byte 0: does not begin with MMIDIDX: not a Megatron .idx file",
                   idx.name());
  const auto version = field<std::uint64_t>(idx, 9);
  if (version == std::uint64_t{1} << 56)
    throw bad_data("'{}' byte 9: version is big-endian: only little-endian files are read",
                   idx.name());
  if (version != 1)
    throw bad_data("'{}' byte 9: version is {}: only version 1 is read", idx.name(), version);
  const ItemType type = item_type(idx, field<std::uint8_t>(idx, 17));

  const auto sequences = field<std::uint64_t>(idx, 18);
  const auto boundaries = field<std::uint64_t>(idx, 26);
  // Against the size first: the products below cannot overflow then.
  const auto room = static_cast<std::uint64_t>(idx.size() - kIndexHeaderBytes);
  if (sequences > room / 12)
    throw bad_data(
        "'{}' byte 18: {} sequences need 12 bytes each, and the file has {}: it is truncated or "
        "damaged",
        idx.name(), sequences, idx.size());
  if (boundaries > room / 8)
    throw bad_data(
        "'{}' byte 26: {} document boundaries need 8 bytes each, and the file has {}: it is "
        "truncated or damaged",
        idx.name(), boundaries, idx.size());
  if (boundaries == 0)
    throw bad_data("'{}' byte 26: 0 document boundaries: needs one more than documents",
                   idx.name());
  const std::uint64_t bare = 12 * sequences + 8 * boundaries;
  if (room != bare && room != bare + sequences)
    throw bad_data(
        "'{}' has {} bytes: {} sequences and {} document boundaries need {} (or {} with modes)",
        idx.name(), idx.size(), sequences, boundaries,
        kIndexHeaderBytes + static_cast<std::int64_t>(bare),
        kIndexHeaderBytes + static_cast<std::int64_t>(bare + sequences));
  return {type, static_cast<std::int64_t>(sequences), static_cast<std::int64_t>(boundaries),
          room != bare};
}

// A mode other than 0 marks a sequence that is not text.
void check_modes(const Bytes& idx, std::int64_t offset, std::int64_t count) {
  ArrayReader<std::int8_t> modes(idx, offset, count);
  for (std::int64_t n = 0; n < count; ++n)
    if (const int mode = modes.next(); mode != 0)
      throw bad_data("'{}' byte {}: sequence {} has mode {}: only text (mode 0) is read",
                     idx.name(), offset + n, n, mode);
}

template <typename T>
void convert(const Bytes& bin, std::int64_t begin, std::span<std::int32_t> out) {
  constexpr std::size_t kPiece = 4096;
  std::byte raw[kPiece * sizeof(T)];
  for (std::size_t done = 0; done < out.size(); done += kPiece) {
    const std::size_t count = std::min(kPiece, out.size() - done);
    const std::int64_t first = begin + static_cast<std::int64_t>(done);
    bin.read(first * static_cast<std::int64_t>(sizeof(T)), std::span(raw, count * sizeof(T)));
    for (std::size_t n = 0; n < count; ++n) {
      const auto token = static_cast<std::int64_t>(load<T>(raw + n * sizeof(T)));
      if (token < 0 || token > std::numeric_limits<std::int32_t>::max())
        throw bad_data("'{}' token {} is {}: needs 0 to {}", bin.name(),
                       first + static_cast<std::int64_t>(n), token,
                       std::numeric_limits<std::int32_t>::max());
      out[done + n] = static_cast<std::int32_t>(token);
    }
  }
}

}  // namespace

std::int64_t item_bytes(ItemType type) {
  switch (type) {
    case ItemType::u8:
    case ItemType::i8: return 1;
    case ItemType::i16:
    case ItemType::u16: return 2;
    case ItemType::i32: return 4;
    case ItemType::i64: return 8;
  }
  SLUICE_CHECK(false, "item type {}", static_cast<int>(type));
  return 0;
}

std::string_view item_name(ItemType type) {
  switch (type) {
    case ItemType::u8: return "u8";
    case ItemType::i8: return "i8";
    case ItemType::i16: return "i16";
    case ItemType::i32: return "i32";
    case ItemType::i64: return "i64";
    case ItemType::u16: return "u16";
  }
  return "?";
}

TokenIndex read_token_index(const Bytes& idx, std::int64_t bin_bytes) {
  const Header header = read_header(idx);
  const std::int64_t sequences = header.num_sequences, width = item_bytes(header.type);
  ArrayReader<std::int32_t> lengths(idx, kIndexHeaderBytes, sequences);
  ArrayReader<std::int64_t> offsets(idx, kIndexHeaderBytes + 4 * sequences, sequences);
  const std::int64_t boundaries_at = kIndexHeaderBytes + 12 * sequences;
  ArrayReader<std::int64_t> boundaries(idx, boundaries_at, header.num_boundaries);

  TokenIndex index{.type = header.type, .num_sequences = sequences, .document_starts = {}};
  index.document_starts.reserve(static_cast<std::size_t>(header.num_boundaries));
  std::int64_t sequence = 0;
  for (std::int64_t d = 0; d < header.num_boundaries; ++d) {
    const std::int64_t boundary = boundaries.next();
    const std::int64_t at = boundaries_at + 8 * d;
    if (d == 0 && boundary != 0)
      throw bad_data("'{}' byte {}: the first document begins at sequence {}: needs 0", idx.name(),
                     at, boundary);
    if (boundary < sequence)
      throw bad_data(
          "'{}' byte {}: document boundary {} is {}, after {}: boundaries must not decrease",
          idx.name(), at, d, boundary, sequence);
    if (boundary > sequences)
      throw bad_data("'{}' byte {}: document boundary {} is {}: there are only {} sequences",
                     idx.name(), at, d, boundary, sequences);
    for (; sequence < boundary; ++sequence) {
      const std::int64_t length_at = kIndexHeaderBytes + 4 * sequence;
      const std::int64_t offset_at = kIndexHeaderBytes + 4 * sequences + 8 * sequence;
      const std::int64_t length = lengths.next(), offset = offsets.next();
      const std::int64_t begin = index.num_tokens * width;
      if (length < 0)
        throw bad_data("'{}' byte {}: sequence {} has length {}: needs 0 or more", idx.name(),
                       length_at, sequence, length);
      if (offset != begin)
        throw bad_data(
            "'{}' byte {}: sequence {} begins at byte {} of the .bin file: the lengths "
            "before it sum to {}",
            idx.name(), offset_at, sequence, offset, begin);
      // Stops the sum far below an overflow, too.
      if (length > (bin_bytes - begin) / width)
        throw bad_data(
            "'{}' byte {}: sequence {} ends at byte {} of the .bin file, which has {}: "
            "the two files are not a pair, or the .bin file is truncated",
            idx.name(), length_at, sequence, begin + length * width, bin_bytes);
      index.num_tokens += length;
    }
    index.document_starts.push_back(index.num_tokens);
  }
  if (sequence != sequences)
    throw bad_data("'{}' byte {}: the last document ends at sequence {}: needs {}", idx.name(),
                   boundaries_at + 8 * (header.num_boundaries - 1), sequence, sequences);
  if (header.has_modes) check_modes(idx, boundaries_at + 8 * header.num_boundaries, sequences);
  return index;
}

IndexedTokens::IndexedTokens(const std::string& prefix) {
  const std::unique_ptr<Bytes> idx = open_file(prefix + ".idx");
  bin_ = open_file(prefix + ".bin");
  index_ = read_token_index(*idx, bin_->size());
}

void IndexedTokens::read(std::int64_t begin, std::span<std::int32_t> out) const {
  SLUICE_CHECK(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= index_.num_tokens,
               "tokens {} + {} of {}", begin, out.size(), index_.num_tokens);
  switch (index_.type) {
    case ItemType::u8: return convert<std::uint8_t>(*bin_, begin, out);
    case ItemType::i8: return convert<std::int8_t>(*bin_, begin, out);
    case ItemType::i16: return convert<std::int16_t>(*bin_, begin, out);
    case ItemType::i32: return convert<std::int32_t>(*bin_, begin, out);
    case ItemType::i64: return convert<std::int64_t>(*bin_, begin, out);
    case ItemType::u16: return convert<std::uint16_t>(*bin_, begin, out);
  }
}

}  // namespace sluice
