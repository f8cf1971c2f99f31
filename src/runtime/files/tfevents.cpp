#include "sluice/runtime/files/tfevents.h"

#include <array>
#include <bit>
#include <cmath>

namespace sluice {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit)
      crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78U : 0U);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

template <typename Unsigned>
std::string little_endian(Unsigned value) {
  std::string out;
  for (std::size_t i = 0; i < sizeof(Unsigned); ++i)
    out += static_cast<char>(value >> (8 * i) & 0xFF);
  return out;
}

// The few pieces of protobuf that an Event needs; `field` is the number in its .proto.
enum class Wire : unsigned { varint = 0, fixed64 = 1, length = 2, fixed32 = 5 };

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7)
    out += static_cast<char>((value & 0x7F) | 0x80);
  return out + static_cast<char>(value);
}

std::string key(unsigned field, Wire wire) {
  return varint(field << 3 | static_cast<unsigned>(wire));
}

std::string text_field(unsigned field, std::string_view bytes) {
  return key(field, Wire::length).append(varint(bytes.size())).append(bytes);
}

std::string time_field(double wall_time) {
  return key(1, Wire::fixed64) + little_endian(std::bit_cast<std::uint64_t>(wall_time));
}

// Step 0 is the default, which protobuf leaves out.
std::string step_field(std::int64_t step) {
  return step == 0 ? "" : key(2, Wire::varint) + varint(static_cast<std::uint64_t>(step));
}

std::string record(std::string_view event) {
  const std::string length = little_endian(static_cast<std::uint64_t>(event.size()));
  return (length + little_endian(masked_crc32c(length)))
      .append(event)
      .append(little_endian(masked_crc32c(event)));
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char c : bytes)
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

std::string tfevents_first_record(double wall_time) {
  return record(time_field(wall_time) + text_field(3, "brain.Event:2"));
}

std::string tfevents_start_record(double wall_time, std::int64_t step) {
  const std::string session_log = key(1, Wire::varint) + varint(1);  // status: START
  return record(time_field(wall_time) + step_field(step) + text_field(7, session_log));
}

std::string tfevents_scalar_record(double wall_time, std::int64_t step, std::string_view tag,
                                   float value) {
  const std::string scalar = text_field(1, tag) + key(2, Wire::fixed32) +
                             little_endian(std::bit_cast<std::uint32_t>(value));
  return record(time_field(wall_time) + step_field(step) + text_field(5, text_field(1, scalar)));
}

TfeventsWriter::TfeventsWriter(FileSystem& files, const std::string& folder,
                               const std::string& host, double wall_time, std::int64_t first_step) {
  make_folders(files, folder);
  const std::string base = fmt::format("{}/events.out.tfevents.{:.0f}.{}", folder,
                                       std::floor(wall_time), host.empty() ? "localhost" : host);
  // A restart within the same second must not continue the other's file.
  path_ = base;
  for (int n = 1; is_there(path_); ++n)
    path_ = fmt::format("{}.{}", base, n);
  file_ = std::make_unique<AppendFile>(files, path_, AppendFile::Existing::must_be_new);
  file_->append(tfevents_first_record(wall_time) + tfevents_start_record(wall_time, first_step));
}

void TfeventsWriter::append(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  std::string records;
  for (const Scalar& scalar : scalars)
    records +=
        tfevents_scalar_record(wall_time, step, scalar.tag, static_cast<float>(scalar.value));
  file_->append(records);
}

}  // namespace sluice
