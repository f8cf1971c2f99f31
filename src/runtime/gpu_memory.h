// What uses a GPU's memory, by name, and the error for a GPU or a machine that runs out of it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>

#include "sluice/base/error.h"
#include "sluice/comm/communicator.h"
#include "sluice/run/plan.h"

namespace sluice {

// What the ranks of this process hold on its GPU, in bytes.
struct GpuMemory {
  std::int64_t weights = 0, gradients = 0, optimizer = 0;
  std::int64_t stash = 0;
  std::int64_t rest = 0;  // tensors between stages, temporaries of ops, rounding
};

// What stays allocated from start to end: by all ranks of a pipeline, or by this rank alone if it
// has a GPU of its own.
GpuMemory fixed_memory(const RunPlan& plan, const Communicator& world);

// The error of a run that is out of memory while `stash` bytes are stashed: one line that says what
// takes how much, and which setting would help most.
UserError out_of_memory(const RunPlan& plan, const Communicator& world, const at::Device& device,
                        std::int64_t stash);

// The most memory so far and the memory there is, in bytes: of tensors on the device where that is
// a GPU, else of this process and its machine.
struct PeakMemory {
  std::int64_t peak = 0, capacity = 0;
};
PeakMemory peak_memory(const at::Device& device);

// "weights 2.51 GiB, ...", of the allocator's peak.
std::string memory_line(GpuMemory memory, std::int64_t peak);

}  // namespace sluice
