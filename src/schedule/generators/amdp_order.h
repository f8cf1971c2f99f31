// The orders of amdp, by name (docs/asynchronous.md).
#pragma once

#include <array>
#include <string_view>

namespace sluice {

enum class AmdpOrder { automatic, a, r, t, rounded_a, frozen };
constexpr auto names_of(AmdpOrder) {
  return std::array<std::string_view, 6>{"auto", "A", "R", "T", "rounded-A", "frozen"};
}

}  // namespace sluice
