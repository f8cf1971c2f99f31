// What each device of a schedule needs for a model, whatever the split of its layers.
#pragma once

#include <functional>

#include "cost/model_costs.h"
#include "plan/partition.h"

namespace sluice {

// By the formulas of the dry run: weights, gradients and optimizer states, the stash as the ops of
// the program come and go, buffers between stages and temporaries. The model's layers_per_stage
// means nothing here. For a device without a layer it is a little too much: its temporaries are
// those of one with layers. REQUIRES: `lowered` was proved by validate().
// `held` adds up what a rank needs for its weights.
std::vector<DeviceMemory> memory_of_devices(
    StagedModel model, const Schedule& lowered,
    const std::function<std::int64_t(const WeightBytes&)>& held);

}  // namespace sluice
