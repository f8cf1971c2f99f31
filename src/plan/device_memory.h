// What each device of a run needs, whatever the split of its layers.
#pragma once

#include "sluice/plan/partition.h"
#include "sluice/run/plan.h"

namespace sluice {

// By the formulas of the dry run: weights, gradients, optimizer states and what is needed beside
// them, the stash as the ops of the program come and go, buffers between stages and temporaries.
// The plan's layers_per_stage means nothing here. For a device without a layer it is a little too
// much: its temporaries are those of one with layers.
std::vector<DeviceMemory> memory_of_devices(RunPlan plan);

}  // namespace sluice
