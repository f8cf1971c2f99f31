// What plans the batches of a run while it trains.
#pragma once

#include <memory>

#include "sluice/plan/plan_run.h"
#include "sluice/run/batch_planner.h"

namespace sluice::flexsp {

// Null where flexsp.enabled is false. The same run and lengths give the same plan. Schedules for
// numbers of microbatches are generated, proved and kept when they are first needed; numbers that
// the run's schedule does not take are not planned. Throws UserError where flexsp.strategy asks for
// a degree that no group can have.
std::shared_ptr<const BatchPlanner> run_planner(const PlannedRun& run);

}  // namespace sluice::flexsp
