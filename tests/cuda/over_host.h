// A Communicator for the memory of one GPU that ranks share, by way of the host: what NCCL does
// between GPUs, so that all that uses it can be tested on a single one.
#pragma once

#include <memory>

#include "sluice/comm/communicator.h"

namespace sluice::test {

// `inner` moves host memory, and outlives it.
std::unique_ptr<Communicator> over_host(Communicator& inner);

}  // namespace sluice::test
