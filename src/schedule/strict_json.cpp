#include "schedule/strict_json.h"

#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace sluice {

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
  try {
    return Json::parse(text, look);
  } catch (const Json::exception& error) {
    throw user_error("not JSON: {}", error.what());
  }
}

}  // namespace sluice
