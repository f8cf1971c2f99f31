// What the ranks of a run will send to each other.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/cost/traffic.h"
#include "sluice/run/plan.h"

namespace sluice {

// Of one step, on each tensor rank of a device and of a data rank. Exact where the tokens of a
// slice divide among the tensor ranks.
Traffic step_traffic(const RunPlan& plan, int device, int data_rank = 0);

// What a token of a shared sequence costs in all-to-alls on the device that has most layers.
double all_to_all_bytes_per_token(const RunPlan& plan);

// Layers of each device of the pipeline.
std::vector<std::int64_t> device_layers(const RunPlan& plan);

}  // namespace sluice
