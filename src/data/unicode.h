// What kind of character a code point is, as far as tokenizers ask.
#pragma once

#include <cstdint>

namespace sluice {

// \p{L}, \p{N}, \s of regular expressions, and the rest.
enum class CharacterClass : std::uint8_t { letter, number, space, other };
CharacterClass character_class(char32_t c);

}  // namespace sluice
