#include "sluice/runtime/files/json_scanner.h"

#include <algorithm>
#include <charconv>

#include "sluice/base/error.h"
#include "sluice/base/text.h"

namespace sluice {
namespace {

// Metadata values may be long, such as a whole configuration.
constexpr std::size_t kMaxString = 1 << 24;

void append_utf8(std::string& out, unsigned code) {
  const auto put = [&](unsigned byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace

void JsonScanner::fail(const std::string& what) const {
  throw UserError(fmt::format("{}: byte {} of the header: {}", path_, at_, what),
                  ExitCode::bad_data);
}

void JsonScanner::skip_blanks() {
  at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
}

bool JsonScanner::take(char c) {
  skip_blanks();
  if (at_ == text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

void JsonScanner::expect(char c, std::string_view where) {
  if (!take(c)) fail(fmt::format("{} needs '{}' and has {}", where, c, here()));
}

void JsonScanner::expect_end() {
  skip_blanks();
  if (at_ < text_.size()) fail(fmt::format("needs the end and has {}", here()));
}

std::uint64_t JsonScanner::integer(std::string_view where) {
  skip_blanks();
  std::uint64_t value = 0;
  const char* begin = text_.data() + at_;
  const char* end = text_.data() + text_.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  const bool leading_zero = stop - begin > 1 && *begin == '0';
  const bool fraction = stop != end && (*stop == '.' || *stop == 'e' || *stop == 'E');
  if (error != std::errc() || leading_zero || fraction)
    fail(fmt::format("{} needs a whole number from 0 to 2^64-1 and has {}", where, here()));
  at_ += static_cast<std::size_t>(stop - begin);
  return value;
}

std::string JsonScanner::string(std::string_view where) {
  expect('"', where);
  std::string out;
  for (;;) {
    if (at_ >= text_.size()) fail(fmt::format("{}: a string does not end", where));
    if (out.size() > kMaxString)
      fail(fmt::format("{}: a string has more than {} bytes", where, kMaxString));
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (c == '"') {
      ++at_;
      return out;
    }
    if (c == '\\') {
      escape(out);
      continue;
    }
    if (c < 0x20) fail(fmt::format("{}: a control character in a string", where));
    const std::size_t length = utf8_length(text_.substr(at_));
    if (length == 0 || length == text_.npos) fail(fmt::format("{}: a string is not UTF-8", where));
    out += text_.substr(at_, length);
    at_ += length;
  }
}

std::string JsonScanner::here() const {
  if (at_ >= text_.size()) return "the end of the header";
  std::string text(text_.substr(at_, 20));
  for (char& c : text)
    if (static_cast<unsigned char>(c) >= 0x7F) c = '?';  // perhaps no UTF-8
  return json_quote(text);
}

unsigned JsonScanner::hex4() {
  unsigned value = 0;
  const std::string_view digits = text_.substr(std::min(at_, text_.size()), 4);
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, 16);
  if (error != std::errc() || stop != end || digits.size() != 4) fail("\\u needs four hex digits");
  at_ += 4;
  return value;
}

void JsonScanner::escape(std::string& out) {
  constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  const char letter = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
  at_ += 2;
  if (letter != 'u') {
    const std::size_t which = kLetters.find(letter);
    if (which == kLetters.npos) fail("an unknown escape in a string");
    out += kMeanings[which];
    return;
  }
  unsigned code = hex4();
  if (code >= 0xD800 && code <= 0xDBFF) {
    if (text_.substr(std::min(at_, text_.size()), 2) != "\\u") fail("half of a surrogate pair");
    at_ += 2;
    const unsigned low = hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xDC00 && code <= 0xDFFF) {
    fail("half of a surrogate pair");
  }
  append_utf8(out, code);
}

std::string shown_text(std::string_view text) {
  std::size_t end = 60;
  if (text.size() <= end) return json_quote(text);
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;
  return json_quote(text.substr(0, end)) + "...";
}

}  // namespace sluice
