// What the ranks of a run will send to each other.
#pragma once

#include "sluice/cost/traffic.h"
#include "sluice/run/plan.h"

namespace sluice {

// Of one step, on each tensor rank of a device and of a data rank. Exact where the tokens of a
// slice divide among the tensor ranks.
Traffic step_traffic(const RunPlan& plan, int device, int data_rank = 0);

}  // namespace sluice
