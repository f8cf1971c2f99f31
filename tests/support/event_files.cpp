#include "support/event_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string_view>

#include "support/golden.h"

namespace sluice::test {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

// Bit by bit, and masked as it is stored.
std::uint32_t checksum(std::string_view bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ (0x82f63b78 & (0 - (crc & 1)));
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

class Bytes {
 public:
  explicit Bytes(std::string_view rest) : rest_(rest) {}
  bool empty() const { return rest_.empty(); }

  std::string_view take(std::size_t size) {
    require(size <= rest_.size(), "cut off");
    const std::string_view out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return out;
  }
  template <typename Value>
  Value fixed() {
    Value value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw std::runtime_error("a varint without an end");
  }

 private:
  std::string_view rest_;
};

struct Field {
  std::uint64_t number = 0;
  std::uint64_t varint = 0;
  std::string_view bytes;  // of a fixed or a delimited one
};

std::vector<Field> fields(std::string_view message) {
  std::vector<Field> out;
  for (Bytes bytes(message); !bytes.empty();) {
    const std::uint64_t key = bytes.varint();
    Field field{.number = key >> 3, .varint = 0, .bytes = {}};
    switch (key & 7) {
      case 0: field.varint = bytes.varint(); break;
      case 1: field.bytes = bytes.take(8); break;
      case 2: field.bytes = bytes.take(bytes.varint()); break;
      case 5: field.bytes = bytes.take(4); break;
      default: throw std::runtime_error("an unknown wire type");
    }
    out.push_back(field);
  }
  return out;
}

std::pair<std::string, float> scalar_of(std::string_view value) {
  std::pair<std::string, float> out;
  for (const Field& field : fields(value)) {
    if (field.number == 1) out.first = field.bytes;
    if (field.number == 2) out.second = Bytes(field.bytes).fixed<float>();
  }
  return out;
}

Event event_of(std::string_view message) {
  Event event;
  for (const Field& field : fields(message)) {
    switch (field.number) {
      case 1: event.wall_time = Bytes(field.bytes).fixed<double>(); break;
      case 2: event.step = static_cast<std::int64_t>(field.varint); break;
      case 3: event.file_version = field.bytes; break;
      case 5:
        for (const Field& value : fields(field.bytes))
          event.scalars.insert(scalar_of(value.bytes));
        break;
      case 7: event.starts_run = fields(field.bytes).at(0).varint == 1; break;
      default: throw std::runtime_error("an unknown field of an event");
    }
  }
  return event;
}

}  // namespace

std::vector<Event> read_events(const std::string& text) {
  std::vector<Event> events;
  for (Bytes bytes(text); !bytes.empty();) {
    const std::string_view length = bytes.take(8);
    require(bytes.fixed<std::uint32_t>() == checksum(length), "the length's checksum");
    const std::string_view message = bytes.take(Bytes(length).fixed<std::uint64_t>());
    require(bytes.fixed<std::uint32_t>() == checksum(message), "the event's checksum");
    events.push_back(event_of(message));
  }
  return events;
}

std::map<std::string, std::map<std::int64_t, float>> read_event_folder(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().find("tfevents") != std::string::npos)
      paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  std::map<std::string, std::map<std::int64_t, float>> out;
  for (const std::string& path : paths) {
    const std::vector<Event> events = read_events(read_text(path));
    require(!events.empty() && events.front().file_version == "brain.Event:2", "no version");
    for (const Event& event : events) {
      if (event.starts_run)
        for (auto& [tag, steps] : out)
          steps.erase(steps.lower_bound(event.step), steps.end());
      for (const auto& [tag, value] : event.scalars)
        require(out[tag].emplace(event.step, value).second, "a step is there twice");
    }
  }
  return out;
}

}  // namespace sluice::test
