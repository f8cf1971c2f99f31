// A Communicator that carries the memory of GPUs, on top of one that carries the host's.
#pragma once

#include <functional>

#include "comm/communicator.h"
#include "comm/nccl/gpu.h"

namespace sluice {

// Runs body(world), in which a message whose bytes lie in the GPU's memory goes from GPU to GPU,
// and every other one through `control` as it is. The two sides of a message are of one kind. Every
// rank of `control` calls it; returns when all ranks have come back from their bodies.
//
// Streams: a message of GPU memory starts when the caller's current stream has done what it was
// given before the post. Its wait blocks only until the other rank has posted its side, and then
// makes the current stream wait for the data; a test says whether it has moved.
//
// Errors are those of `control`, by which every message is announced: other sizes, a rank that
// failed, and a rank that does not post until the deadline. A link that breaks after that fails
// every later call, of host memory too; what the streams were to receive is then worthless. Not
// seen is a GPU that never gets to a message that was posted: who waits for its own stream then
// waits for ever, or until the control ends the process because a rank has died.
void run_on_gpus(Communicator& control, const Gpu& gpu, const CommOptions& options,
                 const std::function<void(Communicator&)>& body);

}  // namespace sluice
