// Schedules whose order is searched (zb, adaptive-v and the like): with the op times of the run,
// and under a memory cap in bytes. What the cap leaves for stashes follows from the plan: the
// weights of each device, its buffers and its temporaries come off first.
#pragma once

#include <string>
#include <vector>

#include "sluice/plan/run_times.h"

namespace sluice {

// Whether the order of the configuration's schedule depends on what ops cost.
bool is_searched(const Config& config);

// The schedule of a resolved configuration, lowered and proved, in an order that knows nothing of
// the run yet: default times and, where a cap in MiB is still to be kept, none. Throws UserError.
Schedule first_schedule(const Config& config);

// Searches again with the times of the plan's stages, and within parallelism.device_memory_mib if
// that is set. `notes` gets a line about the order that was chosen. Throws UserError where no order
// fits, naming the least cap that would do. REQUIRES: is_searched(plan.config); the plan's layers.
void search_schedule(RunPlan& plan, const RunTimes& times, std::vector<std::string>& notes);

// What each device stashes at its peak, in bytes, as the simulator predicts it. With planned
// batches: in any step whose schedule is made already, all sequences being as long as they may be.
std::vector<std::int64_t> predicted_peaks(const RunPlan& plan);

}  // namespace sluice
