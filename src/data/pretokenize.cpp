#include "sluice/data/pretokenize.h"

#include <cstddef>

#include "sluice/base/text.h"
#include "sluice/data/unicode.h"

namespace sluice {
namespace {

using enum CharacterClass;

// Code points of a text, one after the other.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) { look(); }

  bool at_end() const { return at_ == text_.size(); }
  std::size_t at() const { return at_; }
  char32_t character() const { return character_; }  // 0 at the end
  bool is(CharacterClass wanted) const { return !at_end() && class_ == wanted; }
  bool is_line_end() const { return character_ == '\r' || character_ == '\n'; }
  void step() {
    at_ += length_;
    look();
  }
  void skip(CharacterClass skipped) {
    while (is(skipped))
      step();
  }

 private:
  void look() {
    character_ = 0;
    if (at_end()) return;
    const std::string_view rest = text_.substr(at_);
    length_ = utf8_length(rest);
    if (length_ == 0 || length_ == std::string_view::npos) {
      length_ = 1;
      character_ = 0xFFFD;
    } else {
      const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(rest[i]); };
      character_ = length_ == 1 ? byte(0) : byte(0) & (0x7FU >> length_);
      for (std::size_t i = 1; i < length_; ++i)
        character_ = character_ << 6 | (byte(i) & 0x3FU);
    }
    class_ = character_class(character_);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t length_ = 0;
  char32_t character_ = 0;
  CharacterClass class_ = other;
};

// Bytes of 's, 't, 're, 've, 'm, 'll or 'd at the start of a text; 0: none of them.
std::size_t contraction(std::string_view text, bool any_case) {
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    const std::string_view start = text.substr(0, ending.size());
    if (any_case ? lower(start) == ending : start == ending) return ending.size();
  }
  return 0;
}

// \s+(?!\S)|\s+: white space up to the last character before what follows it; all of it at the end
// of the text, or where it is one character.
std::size_t blanks(Reader reader) {
  std::size_t last = reader.at();
  bool several = false;
  while (reader.is(space)) {
    several |= reader.at() > 0;
    last = reader.at();
    reader.step();
  }
  return reader.at_end() || !several ? reader.at() : last;
}

// Optional space, then a run of one class; 0: no such word.
std::size_t spaced_run(Reader reader, CharacterClass wanted) {
  if (reader.character() == ' ') reader.step();
  if (!reader.is(wanted)) return 0;
  reader.skip(wanted);
  return reader.at();
}

std::size_t gpt2_word(std::string_view text) {
  if (const std::size_t ending = contraction(text, false)) return ending;
  const Reader reader(text);
  for (const CharacterClass run : {letter, number, other})
    if (const std::size_t word = spaced_run(reader, run)) return word;
  return blanks(reader);
}

// \s*[\r\n]+: white space up to its last line end; 0: it has none.
std::size_t lines(Reader reader) {
  std::size_t end = 0;
  while (reader.is(space)) {
    const bool ends_line = reader.is_line_end();
    reader.step();
    if (ends_line) end = reader.at();
  }
  return end;
}

std::size_t llama3_word(std::string_view text) {
  if (const std::size_t ending = contraction(text, true)) return ending;
  const Reader start(text);
  Reader reader = start;
  if (!reader.is(letter) && !reader.is(number) && !reader.is_line_end()) reader.step();
  if (reader.is(letter)) {
    reader.skip(letter);
    return reader.at();
  }
  if (start.is(number)) {
    reader = start;
    for (int digits = 0; digits < 3 && reader.is(number); ++digits)
      reader.step();
    return reader.at();
  }
  reader = start;
  if (reader.character() == ' ') reader.step();
  if (reader.is(other)) {
    reader.skip(other);
    while (reader.is_line_end())
      reader.step();
    return reader.at();
  }
  if (const std::size_t end = lines(start)) return end;
  return blanks(start);
}

}  // namespace

std::string_view pattern_text(WordPattern pattern) {
  return pattern == WordPattern::gpt2
             ? R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"
             : R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

std::string_view first_word(std::string_view text, WordPattern pattern) {
  return text.substr(0, pattern == WordPattern::gpt2 ? gpt2_word(text) : llama3_word(text));
}

}  // namespace sluice
