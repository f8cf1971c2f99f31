#include "sluice/plan/run_memory.h"

#include "sluice/run/memory.h"
#include "sluice/run/step_traffic.h"
#include "sluice/run/workspace.h"

namespace sluice {

std::vector<RankMemory> memory_by_rank(const RunPlan& plan) {
  const std::vector<std::int64_t> buffers = buffer_bytes(plan);
  std::optional<RunPlan> states;
  if (plan.sharded()) states.emplace(plan).config.parallelism.sharding = Sharding::states;
  std::vector<RankMemory> ranks(static_cast<std::size_t>(plan.schedule.num_devices()));
  for (int rank = 0; rank < plan.mesh.size(); ++rank)
    ranks[static_cast<std::size_t>(place_of(rank, plan.mesh).pipeline)].ranks.push_back(rank);
  for (std::size_t d = 0; d < ranks.size(); ++d) {
    RankMemory& rank = ranks[d];
    const int device = static_cast<int>(d);
    rank.stages = plan.stages_of(device);
    for (const int stage : rank.stages)
      rank.layers.push_back(plan.layers_per_stage[static_cast<std::size_t>(stage)]);
    const WeightBytes held = weight_bytes(plan, rank.stages);
    rank.weights = held.weights;
    rank.gradients = held.gradients;
    rank.optimizer = held.optimizer;
    rank.stash = plan.peak_stash_bytes[d];
    rank.buffers = buffers[d];
    const BesideWeights beside = beside_weights(plan, held);
    rank.reduction = beside.reduction;
    rank.rollback = beside.rollback;
    rank.traffic = step_traffic(plan, device);
    if (states) rank.states_traffic = step_traffic(*states, device);
    rank.workspace = workspace_bytes(plan, rank.stages);
  }
  return ranks;
}

}  // namespace sluice
