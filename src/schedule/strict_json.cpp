#include "sluice/schedule/strict_json.h"

#include <set>
#include <string>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/base/text.h"

namespace sluice {
namespace {

// "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while parsing
// value - invalid literal; last read: ..." as "line 1, column 5: invalid literal".
std::string plain(std::string cause) {
  for (const std::string_view before : {"] ", "parse error at "})
    if (const auto at = cause.find(before); at != std::string::npos)
      cause.erase(0, at + before.size());
  const auto from = cause.find("syntax error while"), to = cause.find(" - ");
  if (from < to && to != std::string::npos) cause.erase(from, to + 3 - from);
  if (const auto last = cause.find("; last read"); last != std::string::npos) cause.resize(last);
  return cause;
}

}  // namespace

nlohmann::ordered_json parse_strict_json(std::string_view text) {
  using Json = nlohmann::ordered_json;
  constexpr int kMaxDepth = 16;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto look = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) throw user_error("nested more than {} levels deep", kMaxDepth);
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw user_error("the key '{}' appears twice", parsed.get<std::string>());
    return true;
  };
  if (trim(text).empty()) throw user_error("not JSON: it is empty");
  try {
    return Json::parse(text, look);
  } catch (const Json::exception& error) {
    throw user_error("not JSON: {}", plain(error.what()));
  }
}

}  // namespace sluice
