// Ranks with a GPU each: NCCL moves messages in GPU memory, and another Communicator (MPI or
// threads) moves everything else. A build without NCCL has a stub that says so (absent.cpp).
#pragma once

#include <functional>

#include "sluice/comm/communicator.h"

namespace sluice {

// Runs body(world) as run_on_gpus (world.h) does, with GPU number `device` of this machine. Throws
// UserError if two ranks have the same GPU, or in a build without NCCL.
//
// Each ordered pair of ranks and lane that exchanges GPU memory gets an NCCL communicator of its
// own, with a thread and a stream, at its first message. Those streams have to run side by side: a
// GPU has CUDA_DEVICE_MAX_CONNECTIONS (at most 32) queues, and streams that share one may wait for
// each other. So a rank should exchange GPU memory with no more than about 15 others.
void run_nccl(Communicator& control, int device, const CommOptions& options,
              const std::function<void(Communicator&)>& body);

}  // namespace sluice
