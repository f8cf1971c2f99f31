// JSON as our files have it: no key twice, no deep nesting. The library alone would silently keep
// the last of two equal keys.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace sluice {

// Throws UserError that says what is wrong and where.
nlohmann::ordered_json parse_strict_json(std::string_view text);

}  // namespace sluice
