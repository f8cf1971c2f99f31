// What can be said of a run on this machine without running it.
#pragma once

#include "sluice/report/dry_run.h"

namespace sluice::cli {

// Reads the data and the checkpoint where they are there, and throws the UserError that the run
// would end with because of them. The run outlives the result.
DryRun dry_run(const PlannedRun& run, int rollback);

// Throws UserError where weights, gradients and optimizer alone are more than this machine's memory
// and swap, since such a run would allocate until it is killed; and where a device needs more than
// parallelism.device_memory_mib.
void check_memory(const RunPlan& plan);

}  // namespace sluice::cli
