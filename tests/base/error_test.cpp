#include "sluice/base/error.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

std::string shouted(std::string_view field) {
  return field == "devices" || field == "memory_cap" ? fmt::format("<{}>", field) : "";
}

TEST(Fields, AreSpelledByWhoeverTookThemFromTheUser) {
  EXPECT_EQ(spell_fields("`devices` is 3: use `devices` 4, or raise `memory_cap`", shouted),
            "<devices> is 3: use <devices> 4, or raise <memory_cap>");
  EXPECT_EQ(spell_fields("no field", shouted), "no field");
  EXPECT_EQ(spell_fields("", shouted), "");
}

TEST(Fields, OtherBackquotesStay) {
  for (const char* text : {"`", "``", "`devices", "devices`", "`unknown` and `", "`De vices`"})
    EXPECT_EQ(spell_fields(text, shouted), text);
  EXPECT_EQ(spell_fields("`unknown`devices`", shouted), "`unknown<devices>");
}

}  // namespace
}  // namespace sluice
