// Lines for people, on standard error. A failure to write them is ignored: a full log does not end
// a run.
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
