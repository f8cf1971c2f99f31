// Small text helpers shared by every layer: strict numbers in, tidy numbers out, nearest names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

std::string_view trim(std::string_view text);
std::vector<std::string_view> split(std::string_view text, char separator);
std::string join(std::span<const std::string> parts, std::string_view separator);
std::string lower(std::string_view text);

// The whole text as a number, or nothing: no sign for unsigned, no spaces, no trailing characters,
// no overflow. parse_double refuses infinities and NaN.
std::optional<std::int64_t> parse_int(std::string_view text);
std::optional<double> parse_double(std::string_view text);

// A number as people write it: at most 12 significant digits, so that sums of thirds read as
// whole numbers again. Always a valid JSON number.
std::string number(double value);

// Digits with an optional sign and fraction, in groups of three: 1,234,567.89
std::string with_commas(std::string digits);

// "1 rank", "2 ranks", "4,096 microbatches".
std::string counted(std::int64_t number, std::string_view noun);

// `text` inside double quotes, escaped for JSON.
std::string json_quote(std::string_view text);

// Bytes of the UTF-8 character at the start of `text`: 0 where there is none (overlong forms,
// surrogates and what lies beyond the last code point are none), npos where the text ends in it.
std::size_t utf8_length(std::string_view text);

// The text without what could command a terminal: control characters and bytes that are not UTF-8
// are written as \xNN. The first form gives one line; the second keeps line ends and tabs.
std::string printable(std::string_view text);
std::string printable_lines(std::string_view text);

// FNV-1a.
std::uint64_t hash_of(std::string_view text);

// The candidate closest to `name` by edit distance (case-insensitive), or "" when none is close.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// Left-aligned first column, right-aligned others, two spaces apart, one line per row. Cells are
// made printable.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row);
  void left_align(int column) { left_.push_back(column); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<int> left_ = {0};
};

}  // namespace sluice
