// Sharded parameters (ZeRO-3, parallelism.sharding = "parameters"): every rank keeps its own rows
// of each weight. An op gathers the weights that it needs unit by unit, one unit ahead, and drops
// each after use. Gradients of a unit are summed over the shard ranks by the op that computes them,
// and each rank keeps its own rows of the sum. UNSHARD gathers a whole stage until its RESHARD.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/cost/parameters.h"
#include "sluice/cost/traffic.h"
#include "sluice/run/plan.h"

namespace sluice {

// The weights of a stage by unit: the embedding, each layer, the head.
std::vector<std::vector<ParameterShape>> stage_units(const RunPlan& plan, int stage);

// What an op does with one unit.
struct UnitUse {
  std::size_t unit = 0;    // its number in the stage
  bool weights = false;    // needs its weights
  bool gradients = false;  // adds to its gradients
};
// The units that an op of the stage goes through, in its order.
std::vector<UnitUse> unit_uses(const RunPlan& plan, int stage, OpKind kind);

// What a rank sends in a step: gathered weights (`parameter`), summed gradients (`gradient`).
// REQUIRES: plan.sharded().
Traffic sharded_traffic(const RunPlan& plan, int device, int data_rank);

// What a rank with these stages holds at most, beside its own rows. REQUIRES: plan.sharded().
struct GatheredBytes {
  std::int64_t weights = 0;    // one unit, and what has arrived of the next; all units of UNSHARD
  std::int64_t gradients = 0;  // the largest unit's
  std::int64_t messages = 0;   // gradients on their way: a unit's, and the pieces of others
};
GatheredBytes gathered_bytes(const RunPlan& plan, std::span<const int> stages);

}  // namespace sluice
