// The built-in tokenizer: one token per byte, so any text can be trained on without a vocabulary
// file. Token 256 ends a document. Encoding is exact: decode(encode(x)) == x for any bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

inline constexpr std::int32_t kEndOfDocument = 256;
inline constexpr std::int32_t kByteVocabulary = 257;  // the bytes and the end of a document
// The mask of masked-token training; models that use it need one token more.
inline constexpr std::int32_t kByteMaskToken = 257;

// The bytes of `text` as tokens. Adds no end of document.
std::vector<std::int32_t> encode_bytes(std::string_view text);

// The bytes of the tokens; the end of a document and every other token above 255 gives nothing.
std::string decode_bytes(std::span<const std::int32_t> tokens);

// Turns tokens, as they are drawn, into text that can be shown at once: whole UTF-8 characters.
// Bytes that belong to none become U+FFFD, and so do control characters other than tab and line
// ends.
class TextStream {
 public:
  std::string put(std::int32_t token);  // what can be shown now; tokens above 255 add nothing
  std::string end();                    // what was held back

 private:
  std::string take(bool ended);

  std::string held_;  // the beginning of a character
};

}  // namespace sluice
