// Lines for people, on standard error. Whether they can be written changes nothing: a log that is
// full ends no run.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace sluice {

template <typename... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
  std::fputs(fmt::format(text, std::forward<Args>(args)...).c_str(), stderr);
}

}  // namespace sluice
