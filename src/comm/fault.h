// A Communicator that breaks things on purpose, at a chosen call. Tests put it between a program
// and its real Communicator.
#pragma once

#include <chrono>
#include <memory>

#include "sluice/comm/communicator.h"

namespace sluice {

struct Fault {
  enum class Kind {
    delay,       // the call sleeps first
    drop,        // the message is not posted, and counts as finished at once
    throw_error  // the call throws a std::runtime_error that says "injected fault"
  };
  Kind kind = Kind::throw_error;
  int at_call = 1;  // sends and receives of this rank, its groups' included, counted from 1
  std::chrono::milliseconds delay{0};
};

// `inner` with one fault. Wrap only the world; groups made from it are then wrapped, too.
// REQUIRES: `inner` outlives it.
std::unique_ptr<Communicator> with_fault(Communicator& inner, const Fault& fault);

}  // namespace sluice
