// Ranks as threads of one process: the default, and the way tests run. A message moves by one
// memcpy, done by whichever side comes second. A send finishes only when its receive has taken it
// (rendezvous), so a program that runs here cannot hang elsewhere for lack of a buffer.
#pragma once

#include <functional>
#include <string>

#include "sluice/comm/communicator.h"

namespace sluice {

struct ThreadsOptions {
  CommOptions comm;
  // After a failure, how long the other ranks get to come back before they count as hung.
  std::chrono::milliseconds grace{5'000};
};

// Runs body(world) on `num_ranks` threads and returns when all have returned. If a rank throws,
// the waits of all others throw at once, and this rethrows the first cause with the rank named: a
// UserError keeps its exit code, an InternalError its type, anything else becomes a CommError. A
// rank that ends normally while others wait for it fails them too. A thread cannot be ended from
// outside: if a rank has not come back `grace` after a failure, the failure and the hung ranks are
// printed on standard error and the process exits with 1.
void run_threads(int num_ranks, const ThreadsOptions& options,
                 const std::function<void(Communicator&)>& body);

}  // namespace sluice
