// What is found not to fit together, one line each; and the checks that have files of their own.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "sluice/config/config.h"

namespace sluice {

class Problems {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    lines_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

// Slices, layers per stage, caps, and what the schedule's generator reads.
void check_schedule(const Config& config, Problems& problems);
// What schedules are told that go on from one update of the weights to the next.
void check_asynchronous(const Config& config, Problems& problems);

}  // namespace sluice
