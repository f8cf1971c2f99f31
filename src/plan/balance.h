// The split of a run's layers over its stages, by what their ops take and keep.
#pragma once

#include "sluice/plan/partition.h"
#include "sluice/plan/run_times.h"
#include "sluice/sim/steady.h"

namespace sluice {

// What parallelism.layers_per_stage = auto has to go by, with the memory cap of the configuration.
// The plan's layers_per_stage means nothing here.
PartitionQuery partition_query(const RunPlan& plan, const RunTimes& times);

// What one more step takes where steps overlap: once they repeat, or where they do not within a few
// dozen, on the mean of half of them. REQUIRES: plan.endless.
SteadyWindow settled_window(const RunPlan& plan, const Costs& costs);

// What the simulator makes of a step with this split: seconds, or the unit of the counts. Where
// steps overlap, what one more takes.
double step_time(const RunPlan& plan, const RunTimes& times,
                 const std::vector<std::int64_t>& layers);

}  // namespace sluice
