// How results are written as JSON, whatever nlohmann would write.
#include "sluice/report/json.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

std::string text_of(const Json& value) {
  std::string out;
  append_json(out, value);
  return out;
}

TEST(Json, NumbersAreWrittenAsPeopleWriteThem) {
  EXPECT_EQ(text_of(1.0), "1");
  EXPECT_EQ(text_of(0.1 + 0.2), "0.3");
  EXPECT_EQ(text_of(1e12), "1e+12");
  EXPECT_EQ(text_of(1234567890123.0), "1.23456789012e+12");
  EXPECT_EQ(text_of(-0.0), "0");
  EXPECT_EQ(text_of(std::int64_t{1} << 40), "1099511627776");
}

TEST(Json, TextOfAFileIsEscapedAndNeverRefused) {
  EXPECT_EQ(text_of("a\"b\n\x01"), "\"a\\\"b\\n\\u0001\"");
  EXPECT_EQ(text_of("\xff"), "\"\xff\"");  // no UTF-8
}

TEST(Json, AnObjectHasAFieldPerLineAndNoSpaceInside) {
  JsonObject object;
  object.add("valid", true);
  object.add("block", {{"period", 3}, {"lifespans", {{1, 2}, {3}}}});
  append_rows(object.begin("rows"), 2, [](std::string& out, std::size_t n) {
    append_json(out, {{"n", n}});
  });
  append_rows(object.begin("none"), 0, [](std::string&, std::size_t) {});
  EXPECT_EQ(object.take(),
            "{\n"
            "  \"valid\": true,\n"
            "  \"block\": {\"period\":3,\"lifespans\":[[1,2],[3]]},\n"
            "  \"rows\": [\n    {\"n\":0},\n    {\"n\":1}\n  ],\n"
            "  \"none\": [\n  ]\n"
            "}\n");
}

}  // namespace
}  // namespace sluice
