#include "sluice/data/tokenizer.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

std::string shown(std::string_view bytes) {
  TextStream stream;
  std::string text;
  for (const std::int32_t token : encode_bytes(bytes))
    text += stream.put(token);
  return text + stream.end();
}

TEST(TextStream, HoldsBackWhatIsNoWholeCharacter) {
  TextStream stream;
  EXPECT_EQ(stream.put('a'), "a");
  EXPECT_EQ(stream.put(0xE2), "");
  EXPECT_EQ(stream.put(0x82), "");
  EXPECT_EQ(stream.put(0xAC), "€");
  EXPECT_EQ(stream.put(kEndOfDocument), "");
  EXPECT_EQ(stream.put(0xF0), "");
  EXPECT_EQ(stream.end(), "\uFFFD");
  EXPECT_EQ(stream.end(), "");
}

TEST(TextStream, ShowsNothingThatIsNoText) {
  EXPECT_EQ(shown("tab\tline\r\nend"), "tab\tline\r\nend");
  EXPECT_EQ(shown("é€😀"), "é€😀");
  EXPECT_EQ(shown("a\x1b[2Jb\x7f"), "a\uFFFD[2Jb\uFFFD");  // a terminal would obey
  EXPECT_EQ(shown("\xC2\x9B"
                  "2J"),
            "\uFFFD"
            "2J");  // the same in one character
  EXPECT_EQ(shown("\xE2\x82"
                  "a\xFF"),
            "\uFFFD\uFFFD"
            "a\uFFFD");                                    // cut short, and never begun
  EXPECT_EQ(shown("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
}

}  // namespace
}  // namespace sluice
