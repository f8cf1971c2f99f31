// Adds the ops that reduce a stage's gradients over the data-parallel copies of the pipeline.
#pragma once

#include "sluice/schedule/schedule.h"

namespace sluice {

// One REDUCE_GRAD per device, stage it holds and window, where the stage's gradient on this device
// is complete: directly behind the device's last W or B of that stage and window; behind the whole
// group where that op is in one, and behind the sends that follow it where the schedule is lowered,
// so that they never wait. Where the last gradients of several stages are in one group, their
// reductions follow in the order of the ops. A device that holds a stage in several pipes has one
// copy of its weights, and so one reduction, behind the last gradient of any; it is written with
// the lowest of these pipes.
//
// A stage and window that has a REDUCE_GRAD on the device keeps what it has. Compute-only or
// lowered, a valid schedule stays valid, since nothing but an UPDATE waits for a reduction;
// lowering keeps it behind its gradient, with only that op's own sends, and receives of other ops,
// between the two.
Schedule add_reductions(const Schedule& schedule);

}  // namespace sluice
