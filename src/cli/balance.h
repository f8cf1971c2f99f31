// The split of a run's layers over its stages, by what their ops take and keep.
#pragma once

#include "cost/part_times.h"
#include "plan/partition.h"
#include "runtime/config/config.h"

namespace sluice::cli {

struct Balance {
  PartTimes times;
  bool measured = false;  // seconds of a profile; else counted
  Link link;              // between devices, of the profile
  StagedModel model;      // layers_per_stage is still open
  PartitionQuery query;
};

// What parallelism.layers_per_stage = auto has to go by. REQUIRES: a resolved configuration and its
// lowered schedule. Throws UserError for a bad costs file.
Balance balance_of(const Config& config, const Schedule& schedule);

// What the simulator makes of a step with this split, in seconds or in the unit of the counts.
double step_time(const Balance& balance, const Schedule& schedule,
                 const std::vector<std::int64_t>& layers);

}  // namespace sluice::cli
