// From a configuration to the run plan. What needs a search or the simulator is done here (layers
// by the rule auto, orders under a memory cap, peaks of memory) and reaches the trainer as fields.
#pragma once

#include <string>
#include <vector>

#include "sluice/plan/run_times.h"

namespace sluice {

struct PlannedRun {
  RunPlan plan;
  RunTimes times;
  std::vector<std::string> notes;  // what the configuration states and the run changes
};

// Reads the files that the configuration names for it: a schedule, costs; neither data nor
// checkpoint. Throws UserError for values that do not fit together and for a schedule that is
// invalid or cannot be trained with. REQUIRES: comm.backend is chosen (run/launch.h).
PlannedRun plan_run(const Config& config);

// A schedule as the run's, lowered and proved, for another number of microbatches of the same
// layers and times. Throws UserError where there is none.
Schedule schedule_with(const RunPlan& plan, const RunTimes& times, int num_microbatches);

// The same run with batches that are dealt, in as many microbatches: those that batch plans give it
// where it sets no number itself. Throws as plan_run for a file that has to be read for that.
Config without_batch_plans(Config config);

// The same with layers that are still to be dealt: layers_per_stage holds zeros, and no peaks are
// predicted.
PlannedRun plan_open_run(const Config& config);

}  // namespace sluice
