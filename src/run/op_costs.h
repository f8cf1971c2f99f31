// What the ops of a run cost: the bytes that they keep and send, and the time that they take.
#pragma once

#include "sluice/cost/costs.h"
#include "sluice/cost/part_times.h"
#include "sluice/run/plan.h"

namespace sluice {

// Bytes that each op keeps and sends. All ops take as long, since only their order matters for
// memory; messages are free.
Costs byte_costs(const RunPlan& plan);

// The same with the times of ops that are made of these parts. A slice takes its share: of a layer
// by the layer's FLOPs (cost/slices.h), of embedding and head by tokens.
Costs costs_of_parts(const PartTimes& times, const RunPlan& plan);

}  // namespace sluice
