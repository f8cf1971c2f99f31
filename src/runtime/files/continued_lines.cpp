#include "sluice/runtime/files/continued_lines.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sluice/runtime/files/file_system.h"

namespace sluice {
namespace {

// Calls `each` with every line, newline included; the last may lack it.
template <typename Each>
void for_each_line(const InputFile& file, Each each) {
  constexpr std::size_t kChunkBytes = 1 << 20;
  std::string pending;
  for (std::uint64_t at = 0; at < file.size();) {
    const std::size_t got = std::min<std::uint64_t>(kChunkBytes, file.size() - at);
    const std::size_t before = pending.size();
    pending.resize(before + got);
    file.read_at(at, std::as_writable_bytes(std::span(pending).subspan(before)));
    at += got;
    std::size_t begin = 0;
    for (std::size_t end = pending.find('\n', before); end != std::string::npos;
         end = pending.find('\n', begin)) {
      each(std::string_view(pending).substr(begin, end + 1 - begin));
      begin = end + 1;
    }
    pending.erase(0, begin);
  }
  if (!pending.empty()) each(std::string_view(pending));
}

}  // namespace

std::optional<std::int64_t> step_of_line(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer())
    return std::nullopt;
  return json["step"].get<std::int64_t>();
}

bool continue_lines(AppendFile& file, const std::string& path,
                    const std::function<LineFate(std::string_view line)>& fate) {
  bool foreign = false, drops = false;
  std::uint64_t beginning_bytes = 0;  // before the first line to drop
  std::string rest;                   // what is kept after it
  for_each_line(InputFile(path, Symlinks::refuse), [&](std::string_view line) {
    switch (line.back() == '\n' ? fate(line) : LineFate::drop) {
      case LineFate::foreign: foreign = true; break;
      case LineFate::drop: drops = true; break;
      case LineFate::keep:
        if (drops)
          rest += line;
        else
          beginning_bytes += line.size();
        break;
    }
  });
  if (foreign) return false;
  // Cut in place: a new file of that name would not be the one that may be locked.
  if (drops) {
    file.cut(beginning_bytes);
    if (!rest.empty()) file.append(rest);
  }
  return true;
}

}  // namespace sluice
