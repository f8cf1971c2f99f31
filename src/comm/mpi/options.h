// How ranks that are processes watch over each other, and what they do at the end.
#pragma once

#include <chrono>
#include <exception>
#include <functional>

#include "sluice/comm/communicator.h"

namespace sluice {

struct MpiOptions {
  CommOptions comm;
  std::chrono::milliseconds heartbeat{100};  // between two signs of life
  std::chrono::milliseconds silence{600};    // after which a rank counts as dead
  int num_tags = 0;  // tags before they repeat; 0: as many as MPI allows. A test uses few.
};

// What this rank does when the run fails. Returns the exit code. `speaks` is true on one rank, the
// one that failed or saw the failure first, and only that rank should print `cause`.
using MpiReport = std::function<int(const std::exception_ptr& cause, bool speaks)>;

}  // namespace sluice
