// Lines for people, on standard error. A failure to write them is ignored: a full log does not end
// a run.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string_view>
#include <type_traits>

#include "sluice/base/text.h"

namespace sluice {

// Texts among the arguments are made printable: they may come from files.
template <typename... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
  [[maybe_unused]] const auto safe = [](const auto& value) {
    if constexpr (std::is_convertible_v<decltype(value), std::string_view>)
      return printable_lines(value);
    else
      return value;
  };
  const auto print = [&](const auto&... values) {
    std::fputs(fmt::vformat(text, fmt::make_format_args(values...)).c_str(), stderr);
  };
  print(safe(args)...);
}

}  // namespace sluice
