// Devices that wait for each other in a circle: one problem for each circle.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sluice/schedule/problem.h"

namespace sluice {

// What a device waits for once nothing moves any more.
struct Waiting {
  int on = -1;  // the device it waits for; -1: none
  std::size_t position = 0;
  std::string op;    // its next op
  std::string line;  // "device 1 at position 4 (1B0) waits for ..."
};

// One problem for each circle. REQUIRES that there is one, or a problem already.
void report_deadlocks(const std::vector<Waiting>& devices, std::vector<Problem>& problems);

}  // namespace sluice
