#include "base/text.h"

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

TEST(Text, QuotesAreSafeInJson) {
  EXPECT_EQ(json_quote("a\"b\\c\n\x01"), "\"a\\\"b\\\\c\\n\\u0001\"");
}

TEST(Text, TablesAlignNumbersToTheRight) {
  TextTable table({"name", "n"});
  table.add({"a", "1"});
  table.add({"longer", "100"});
  EXPECT_EQ(table.text(), "name      n\na         1\nlonger  100\n");
}

}  // namespace
}  // namespace sluice
