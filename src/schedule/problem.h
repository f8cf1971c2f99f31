// What is wrong with a schedule, and where.
#pragma once

#include <string>

namespace sluice {

struct Problem {
  int device = -1;    // -1: no single device
  int position = -1;  // index into the device's program; -1: the program as a whole
  std::string op;     // the op's text, or ""
  std::string text;   // what is wrong

  std::string line() const;  // "device 1, position 4, 1B0: ..."
};

}  // namespace sluice
