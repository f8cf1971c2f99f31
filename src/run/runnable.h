// What a valid schedule may ask for and the trainer does not do.
#pragma once

#include "sluice/schedule/schedule.h"

namespace sluice {

// Throws UserError for a device without a stage of pipe 0, and for several windows: the trainer
// updates all weights once, at the end of a step. REQUIRES: the schedule is valid.
void check_runnable(const Schedule& schedule);

}  // namespace sluice
