// A whole training run of one rank: resume, steps, validation, checkpoints, metrics. Everything it
// decides comes from the configuration and the schedule, so every rank decides the same.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sluice/comm/communicator.h"
#include "sluice/cost/costs.h"
#include "sluice/data/dataset.h"
#include "sluice/runtime/files/metrics_folder.h"
#include "sluice/runtime/trainer.h"

namespace sluice {

struct TrainingRun {
  const RunPlan& plan;
  const Dataset& training;
  const Dataset* held_out = nullptr;  // null: no validation; else interval > 0
  at::Device device = at::kCPU;
  int threads_per_rank = 1;
  int rollback = 0;                         // checkpoints to go back before resuming
  const std::atomic<bool>* stop = nullptr;  // set: finish the step, save, return
  // Rank 0, after every step; `logged`: a line is due, and its row was written.
  std::function<void(const StepMetrics&, bool logged)> on_step;
  std::function<void(const std::string&)> on_note;    // rank 0: resumed from, saved, ...
  std::function<void(const std::string&)> on_sample;  // rank 0, at the end: of generate.prompt
};

struct RunEnd {
  std::string gpu_memory;  // at its peak, by name; on rank 0 of a run on a GPU, else empty
  std::int64_t last_step = 0;
  bool stopped = false;                 // before the last step, by `stop`
  std::vector<DeviceTimeline> devices;  // of the last step; all of them on rank 0, else none
  Schedule schedule;                    // likewise, on every rank
  // Where steps overlap, what one took in the mean, the first and the last few left out, in which
  // not all devices are at work; nothing where there were no others.
  std::optional<double> step_s;
  // What the ops took in this run, and the bytes they keep; messages are free. None where no step
  // was taken.
  std::optional<Costs> costs;
};

RunEnd run_training(const TrainingRun& run, Communicator& world);

}  // namespace sluice
