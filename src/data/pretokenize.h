// Text cut into the words that byte-pair merging never crosses, as two well-known regular
// expressions cut it: GPT-2's and Llama 3's. They look ahead, so they are written out by hand.
#pragma once

#include <string_view>

namespace sluice {

enum class WordPattern {
  gpt2,   // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  llama3  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
          //  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
};
// The expressions as tokenizer.json files have them.
std::string_view pattern_text(WordPattern pattern);

// The first word of a text: all words one after the other are the text. A byte that is no UTF-8
// counts as a character that is neither letter, number nor space. Letters after an apostrophe are
// compared in ASCII. REQUIRES: text that is not empty.
std::string_view first_word(std::string_view text, WordPattern pattern);

}  // namespace sluice
