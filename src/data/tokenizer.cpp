#include "sluice/data/tokenizer.h"

#include "sluice/base/text.h"

namespace sluice {

std::vector<std::int32_t> encode_bytes(std::string_view text) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text)
    tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string decode_bytes(std::span<const std::int32_t> tokens) {
  std::string text;
  text.reserve(tokens.size());
  for (const std::int32_t token : tokens)
    if (token >= 0 && token < 256) text.push_back(static_cast<char>(token));
  return text;
}

std::string TextStream::put(std::int32_t token) {
  held_ += decode_bytes({&token, 1});
  return take(false);
}

std::string TextStream::end() { return take(true); }

std::string TextStream::take(bool ended) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string text;
  while (!held_.empty()) {
    const std::size_t length = utf8_length(held_);
    if (length == held_.npos && !ended) break;
    const bool whole = length != 0 && length != held_.npos;
    const std::string_view character = std::string_view(held_).substr(0, whole ? length : 1);
    const auto first = static_cast<unsigned char>(character[0]);
    const bool is_control = (first < 0x20 && first != '\t' && first != '\n' && first != '\r') ||
                            first == 0x7f || (character >= "\xC2\x80" && character <= "\xC2\x9F");
    text += whole && !is_control ? character : kReplacement;
    held_.erase(0, character.size());
  }
  return text;
}

}  // namespace sluice
