// A Communicator that carries the memory of GPUs, on top of one that carries the host's.
#pragma once

#include <functional>

#include "sluice/comm/communicator.h"
#include "sluice/comm/nccl/gpu.h"

namespace sluice {

// Runs body(world). A message of that world goes from GPU to GPU if its bytes are in GPU memory,
// and unchanged through `control` otherwise. Both sides of a message must be of the same kind.
// Every rank of `control` calls this function. It returns when the bodies of all ranks have
// returned.
//
// Streams: a message of GPU memory starts when the caller's current stream has done the work queued
// before the post. Its wait blocks only until the other rank has posted its side, and then makes
// the current stream wait for the data. Its test says whether the data has moved.
//
// Errors are those of `control`, which announces every message: sizes that differ, a rank that
// failed, and a rank that has not posted by the deadline. If a link breaks after that, every later
// call fails, for host memory too, and what the streams were to receive is worthless. One error is
// not detected: a GPU that never gets to a posted message. A rank that waits for its own stream
// then waits forever, or until `control` ends the process because a rank has died.
void run_on_gpus(Communicator& control, const Gpu& gpu, const CommOptions& options,
                 const std::function<void(Communicator&)>& body);

}  // namespace sluice
