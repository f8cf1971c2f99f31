#include "runtime/gpu_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "cuda/device.h"
#include "runtime/options.h"

namespace sluice {
namespace {

double gibibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

std::int64_t rest_of(const GpuMemory& memory, std::int64_t all) {
  return all - memory.weights - memory.gradients - memory.optimizer - memory.stash;
}

bool has_narrow_states(const TrainerOptions& options) {
  return options.kind.gradient_dtype != at::kFloat && options.optimizer.state_dtype != at::kFloat &&
         !options.optimizer.master_weights;
}

std::string remedy_for_states(const TrainerOptions& options) {
  return has_narrow_states(options)
             ? "use more ranks or a smaller model"
             : "set training.dtype, training.gradient_dtype and optimizer.state_dtype to bfloat16 "
               "and optimizer.master_weights to false, or use more ranks";
}

std::string remedy(const TrainerOptions& options, const GpuMemory& memory) {
  constexpr const char* kLevels[] = {"none", "elementwise", "mlp", "all-but-attention", "full"};
  const auto level = static_cast<std::size_t>(options.level);
  const std::int64_t states = memory.gradients + memory.optimizer;
  if (states > memory.stash + memory.rest && !has_narrow_states(options))
    return remedy_for_states(options);
  if (options.level != RecomputeLevel::full)
    return fmt::format("set recompute.level to {} (it is {})", kLevels[level + 1], kLevels[level]);
  return "use shorter sequences or smaller microbatches (parallelism.num_microbatches), or cut "
         "sequences (parallelism.slices)";
}

}  // namespace

GpuMemory fixed_memory(const TrainerOptions& options, const Schedule& schedule,
                       const Communicator& world) {
  GpuMemory memory;
  const StagedModel model = staged_model(options, schedule);
  const int own = place_of(world.rank(), mesh_of(options, schedule)).pipeline;
  for (int device = 0; device < schedule.num_devices(); ++device) {
    if (world.moves_device_memory() && device != own) continue;
    const WeightBytes bytes = weight_bytes(model, schedule.placement.stages_of(device));
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

UserError out_of_memory(const TrainerOptions& options, const Schedule& schedule,
                        const Communicator& world, std::int64_t stash) {
  GpuMemory memory = fixed_memory(options, schedule, world);
  memory.stash = stash;
  if (!options.kind.on_gpu())
    return UserError(
        fmt::format("out of memory on this machine: the weights of a pipeline take {:.2f} GiB, its "
                    "gradients {:.2f}, its optimizer {:.2f}, and the activations of this rank took "
                    "{:.2f}; {}; train --dry-run shows what a run needs",
                    gibibytes(memory.weights), gibibytes(memory.gradients),
                    gibibytes(memory.optimizer), gibibytes(stash), remedy(options, memory)),
        ExitCode::temporary);
  const cuda::MemoryUse use = cuda::memory_use(options.kind.device.index());
  memory.rest = rest_of(memory, use.allocated);
  const double total = gibibytes(use.total);
  const std::int64_t fixed = memory.weights + memory.gradients + memory.optimizer;
  if (fixed > use.allocated)  // while they were being allocated, or when some are freed already
    return UserError(
        fmt::format("out of GPU memory ({:.1f} GiB): weights need {:.2f} GiB, gradients {:.2f} and "
                    "the optimizer {:.2f}, {:.2f} in all; at the peak {:.2f} were in use; {}",
                    total, gibibytes(memory.weights), gibibytes(memory.gradients),
                    gibibytes(memory.optimizer), gibibytes(fixed), gibibytes(use.peak),
                    remedy_for_states(options)),
        ExitCode::temporary);
  const bool shared = schedule.num_devices() > 1 && !world.moves_device_memory();
  return UserError(
      fmt::format("out of GPU memory ({:.1f} GiB); in use: {}{}; {}", total,
                  memory_line(memory, use.allocated),
                  shared ? " (including activations of other ranks)" : "", remedy(options, memory)),
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
