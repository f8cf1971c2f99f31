// The batch of a pipeline: a stage waits for its neighbours, so it matters how many microbatches
// there are and in which order they come. Both are chosen by simulating the schedule.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "sluice/plan/flexsp/plan_batch.h"
#include "sluice/plan/run_times.h"

namespace sluice::flexsp {

// The run's schedule for so many microbatches, lowered and proved; null: there is none.
using ScheduleFor = std::function<const Schedule*(int num_microbatches)>;

class Pipeline {
 public:
  // REQUIRES: the plan's peaks are predicted; what `schedule_for` returns outlives it.
  Pipeline(const RunPlan& plan, const RunTimes& times, ScheduleFor schedule_for);

  // Makespan in seconds, each microbatch taking what its slowest group takes on the busiest device.
  // Nothing where the schedule does not take so many microbatches, or where a device would stash
  // more than the run's plan says (peak_stash_bytes).
  std::optional<double> seconds(const PlannedBatch& batch,
                                std::span<const std::int64_t> lengths) const;

  // The fastest candidate in the fastest order; of equal ones the first. A candidate with another
  // number of microbatches than the schedule takes gets empty ones. `seconds` of it is the
  // makespan. Nothing where none will do.
  std::optional<PlannedBatch> best(std::span<const PlannedBatch> candidates,
                                   std::span<const std::int64_t> lengths) const;

 private:
  RunPlan plan_;
  Costs times_;  // of one microbatch of any size, by stage
  Link link_;
  ScheduleFor schedule_for_;
  double busiest_ = 0;  // work of a device in a microbatch
};

// Orders in which microbatches that take so long are tried, the given one first, each once.
std::vector<std::vector<std::size_t>> orders_of(std::span<const double> seconds);

}  // namespace sluice::flexsp
