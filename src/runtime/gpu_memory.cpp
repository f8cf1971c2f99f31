#include "sluice/runtime/gpu_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "sluice/base/names.h"
#include "sluice/cuda/device.h"
#include "sluice/run/memory.h"

namespace sluice {
namespace {

double gibibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

std::int64_t rest_of(const GpuMemory& memory, std::int64_t all) {
  return all - memory.weights - memory.gradients - memory.optimizer - memory.stash;
}

bool has_narrow_states(const Config& config) {
  return config.training.gradient_dtype != NumberType::float32 &&
         config.optimizer.state_dtype != NumberType::float32 && !config.optimizer.master_weights;
}

std::string remedy_for_states(const Config& config) {
  return has_narrow_states(config)
             ? "use more ranks or a smaller model"
             : "set training.dtype, training.gradient_dtype and optimizer.state_dtype to bfloat16 "
               "and optimizer.master_weights to false, or use more ranks";
}

std::string remedy(const Config& config, const GpuMemory& memory) {
  const RecomputeLevel level = config.recompute.level;
  const std::int64_t states = memory.gradients + memory.optimizer;
  if (states > memory.stash + memory.rest && !has_narrow_states(config))
    return remedy_for_states(config);
  if (level != RecomputeLevel::full)
    return fmt::format("set recompute.level to {} (it is {})",
                       static_cast<RecomputeLevel>(static_cast<int>(level) + 1), level);
  return "use shorter sequences or smaller microbatches (parallelism.num_microbatches), or cut "
         "sequences (parallelism.slices)";
}

}  // namespace

GpuMemory fixed_memory(const RunPlan& plan, const Communicator& world) {
  GpuMemory memory;
  const int own = place_of(world.rank(), plan.mesh).pipeline;
  for (int device = 0; device < plan.schedule.num_devices(); ++device) {
    if (world.moves_device_memory() && device != own) continue;
    const WeightBytes bytes = weight_bytes(plan, device);
    memory.weights += bytes.weights;
    memory.gradients += bytes.gradients;
    memory.optimizer += bytes.optimizer;
  }
  return memory;
}

std::string memory_line(GpuMemory memory, std::int64_t peak) {
  memory.rest = rest_of(memory, peak);
  return fmt::format(
      "{:.2f} GiB: weights {:.2f}, gradients {:.2f}, optimizer {:.2f}, activations {:.2f}, "
      "buffers, workspace and rounding {:.2f}",
      gibibytes(peak), gibibytes(memory.weights), gibibytes(memory.gradients),
      gibibytes(memory.optimizer), gibibytes(memory.stash), gibibytes(memory.rest));
}

UserError out_of_memory(const RunPlan& plan, const Communicator& world, const at::Device& device,
                        std::int64_t stash) {
  GpuMemory memory = fixed_memory(plan, world);
  memory.stash = stash;
  if (!device.is_cuda())
    return UserError(
        fmt::format("out of memory on this machine: the weights of a pipeline take {:.2f} GiB, its "
                    "gradients {:.2f}, its optimizer {:.2f}, and the activations of this rank took "
                    "{:.2f}; {}; train --dry-run shows what a run needs",
                    gibibytes(memory.weights), gibibytes(memory.gradients),
                    gibibytes(memory.optimizer), gibibytes(stash), remedy(plan.config, memory)),
        ExitCode::temporary);
  const cuda::MemoryUse use = cuda::memory_use(device.index());
  memory.rest = rest_of(memory, use.allocated);
  const double total = gibibytes(use.total);
  const std::int64_t fixed = memory.weights + memory.gradients + memory.optimizer;
  if (fixed > use.allocated)  // while they were being allocated, or when some are freed already
    return UserError(
        fmt::format("out of GPU memory ({:.1f} GiB): weights need {:.2f} GiB, gradients {:.2f} and "
                    "the optimizer {:.2f}, {:.2f} in all; at the peak {:.2f} were in use; {}",
                    total, gibibytes(memory.weights), gibibytes(memory.gradients),
                    gibibytes(memory.optimizer), gibibytes(fixed), gibibytes(use.peak),
                    remedy_for_states(plan.config)),
        ExitCode::temporary);
  const bool shared = plan.schedule.num_devices() > 1 && !world.moves_device_memory();
  return UserError(fmt::format("out of GPU memory ({:.1f} GiB); in use: {}{}; {}", total,
                               memory_line(memory, use.allocated),
                               shared ? " (including activations of other ranks)" : "",
                               remedy(plan.config, memory)),
                   ExitCode::temporary);
}

PeakMemory peak_memory(const at::Device& device) {
  if (device.is_cuda()) {
    const cuda::MemoryUse use = cuda::memory_use(device.index());
    return {use.peak, use.total};
  }
  PeakMemory memory;
  memory.capacity = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmHWM:") {
      status >> memory.peak;
      memory.peak *= 1024;
      break;
    }
  return memory;
}

}  // namespace sluice
