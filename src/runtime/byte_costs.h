// Bytes that the ops of a run keep and send, before anything has run.
#pragma once

#include "cost/costs.h"
#include "runtime/trainer.h"

namespace sluice {

// Every op takes as long as any other, since only their order matters for memory; messages are
// free. REQUIRES: options are for this schedule.
Costs byte_costs(const TrainerOptions& options, const Schedule& schedule);

}  // namespace sluice
