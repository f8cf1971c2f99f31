#include "sluice/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "sluice/base/error.h"

namespace sluice {

std::string_view trim(std::string_view text) {
  const char* blanks = " \t\r\n\f\v";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::optional<std::int64_t> parse_int(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || text.empty()) return std::nullopt;
  return value;
}

std::optional<double> parse_double(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || text.empty() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::string number(double value) {
  SLUICE_CHECK(std::isfinite(value), "{} is to be written as a number", value);
  if (value == 0) return "0";
  return fmt::format("{:.12g}", value);
}

std::string with_commas(std::string digits) {
  const std::size_t first = digits.find_first_of("0123456789");
  if (first == std::string::npos) return digits;  // nan, inf
  for (std::size_t at = std::min(digits.find('.'), digits.size()); at > first + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string counted(std::int64_t number, std::string_view noun) {
  const bool hisses = noun.ends_with('s') || noun.ends_with("ch");
  return fmt::format("{} {}{}", with_commas(std::to_string(number)), noun,
                     number == 1 ? ""
                     : hisses    ? "es"
                                 : "s");
}

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
          out += c;
    }
  }
  return out + '"';
}

std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return std::string_view::npos;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  for (std::size_t i = 1; i < std::min(length, text.size()); ++i) {
    const bool second = i == 1;
    const unsigned least = second && first == 0xe0 ? 0xa0 : second && first == 0xf0 ? 0x90 : 0x80;
    const unsigned most = second && first == 0xed ? 0x9f : second && first == 0xf4 ? 0x8f : 0xbf;
    if (byte(i) < least || byte(i) > most) return 0;
  }
  return length <= text.size() ? length : std::string_view::npos;
}

namespace {

std::string written_out(std::string_view text, std::string_view kept) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const bool whole = length != 0 && length != text.npos;
    const std::string_view character = text.substr(0, whole ? length : 1);
    const auto first = static_cast<unsigned char>(character[0]);
    // U+0080 to U+009F are control characters, too.
    const bool control = first < 0x20 || first == 0x7f ||
                         (first == 0xc2 && static_cast<unsigned char>(character.back()) < 0xa0);
    if (whole && (!control || kept.find(character[0]) != kept.npos))
      out += character;
    else
      for (const char c : character)
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    text.remove_prefix(character.size());
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return written_out(text, ""); }
std::string printable_lines(std::string_view text) { return written_out(text, "\n\t"); }

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text)
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  const std::string wanted = lower(name);
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, wanted.size() / 2) + 1;
  for (const std::string& candidate : candidates) {
    const std::string have = lower(candidate);
    std::vector<std::size_t> row(have.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j)
      row[j] = j;
    for (std::size_t i = 1; i <= wanted.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j <= have.size(); ++j) {
        const std::size_t substitute = diagonal + (wanted[i - 1] != have[j - 1]);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

void TextTable::add(std::vector<std::string> row) {
  for (std::string& cell : row)
    cell = printable(cell);
  rows_.push_back(std::move(row));
}

std::string TextTable::text() const {
  std::vector<std::size_t> width;
  for (const auto& row : rows_) {
    width.resize(std::max(width.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c)
      width[c] = std::max(width[c], row[c].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (c > 0) line += "  ";
      const bool left = std::find(left_.begin(), left_.end(), static_cast<int>(c)) != left_.end();
      line +=
          left ? fmt::format("{:<{}}", row[c], width[c]) : fmt::format("{:>{}}", row[c], width[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

}  // namespace sluice
