#include "sluice/base/text.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Text, NumbersAreReadWholeOrNotAtAll) {
  EXPECT_EQ(parse_int("42"), 42);
  EXPECT_EQ(parse_int("-1"), -1);
  for (const char* bad : {"", "4x", " 4", "4 ", "4.0", "99999999999999999999", "0x10"})
    EXPECT_FALSE(parse_int(bad)) << bad;
  EXPECT_EQ(parse_double("1e3"), 1000.0);
  for (const char* bad : {"", "nan", "inf", "1e999", "1,5", "1 "})
    EXPECT_FALSE(parse_double(bad)) << bad;
}

TEST(Text, SumsOfThirdsReadAsWholeNumbers) {
  double sum = 0;
  for (int n = 0; n < 3000; ++n)
    sum += 1.0 / 3;
  EXPECT_EQ(number(sum), "1000");
  EXPECT_EQ(number(97.75), "97.75");
  EXPECT_EQ(number(-0.0), "0");
  EXPECT_EQ(number(1e-9), "1e-09");
}

TEST(Text, NearestNameIgnoresCaseAndGivesUpOnNonsense) {
  const std::vector<std::string> names = {"v-half", "v-min", "zb-v", "seq1f1b"};
  EXPECT_EQ(nearest_name("V-Hlaf", names), "v-half");
  EXPECT_EQ(nearest_name("seqf1b", names), "seq1f1b");
  EXPECT_EQ(nearest_name("completely different", names), "");
}

TEST(Text, OneIsNotCountedInThePlural) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(2, "rank"), "2 ranks");
  EXPECT_EQ(counted(0, "problem"), "0 problems");
  EXPECT_EQ(counted(4096, "microbatch"), "4,096 microbatches");
  EXPECT_EQ(counted(1, "process"), "1 process");
  EXPECT_EQ(counted(2, "process"), "2 processes");
}

TEST(Text, QuotesAreSafeInJson) {
  EXPECT_EQ(json_quote("a\"b\\c\n\x01"), "\"a\\\"b\\\\c\\n\\u0001\"");
}

TEST(Text, Utf8CharactersAreWholeCutOrNone) {
  EXPECT_EQ(utf8_length("ab"), 1u);
  EXPECT_EQ(utf8_length("\xC3\xA9x"), 2u);
  EXPECT_EQ(utf8_length("\xE2\x82\xAC"), 3u);
  EXPECT_EQ(utf8_length("\xF4\x8F\xBF\xBF"), 4u);
  for (const char* cut : {"", "\xC3", "\xE2\x82", "\xF0\x9F\x98"})
    EXPECT_EQ(utf8_length(cut), std::string_view::npos) << cut;
  for (const char* bad : {"\x80", "\xC1\x80", "\xC3x", "\xE0\x80\x80", "\xE0\x80", "\xED\xA0\x80",
                          "\xF0\x8F\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"})
    EXPECT_EQ(utf8_length(bad), 0u) << bad;
}

TEST(Text, WhatCouldCommandATerminalIsWrittenOut) {
  EXPECT_EQ(printable("plain, caf\xC3\xA9 \xE2\x82\xAC"), "plain, caf\xC3\xA9 \xE2\x82\xAC");
  EXPECT_EQ(printable("a\x1b[31mb\n\t\x7f"), "a\\x1b[31mb\\x0a\\x09\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m\xC2\xA0"),
            "\\xc2\\x9b31m\xC2\xA0");                                // CSI as one character
  EXPECT_EQ(printable("\x9b\xff\xE2\x82"), "\\x9b\\xff\\xe2\\x82");  // no UTF-8
  EXPECT_EQ(printable_lines("a\r\x1b\n\tb"), "a\\x0d\\x1b\n\tb");
  TextTable table({"a"});
  table.add({"\x1b]0;title\x07"});
  EXPECT_EQ(table.text(), "a\n\\x1b]0;title\\x07\n");
}

TEST(Text, TablesAlignNumbersToTheRight) {
  TextTable table({"name", "n"});
  table.add({"a", "1"});
  table.add({"longer", "100"});
  EXPECT_EQ(table.text(), "name      n\na         1\nlonger  100\n");
}

}  // namespace
}  // namespace sluice
