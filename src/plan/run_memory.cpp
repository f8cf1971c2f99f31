#include "sluice/plan/run_memory.h"

#include <algorithm>
#include <set>

#include "sluice/run/memory.h"
#include "sluice/run/step_kinds.h"
#include "sluice/run/step_traffic.h"
#include "sluice/run/workspace.h"

namespace sluice {
namespace {

void raise(std::int64_t& value, std::int64_t to) { value = std::max(value, to); }

// What weights take: gathered ones by the programs that gather them.
void add_weights(const RunPlan& plan, int device, RankMemory& rank) {
  const WeightBytes held = weight_bytes(plan, device);
  const BesideWeights beside = beside_weights(plan, held);
  raise(rank.weights, held.weights);
  raise(rank.gradients, held.gradients);
  raise(rank.optimizer, held.optimizer);
  raise(rank.reduction, beside.reduction);
  raise(rank.rollback, beside.rollback);
}

// Data ranks whose parts of the weights' rows are the largest and the smallest there are.
std::set<int> extreme_data_ranks(const MeshShape& mesh) {
  std::set<int> out;
  for (const int replica : {0, mesh.replicate - 1})
    for (const int shard : {0, mesh.shard - 1})
      out.insert(replica * mesh.shard + shard);
  return out;
}

// Of equal batches that of the first data rank; of unequal ones the most that any may send.
void add_traffic(const RunPlan& plan, std::vector<RankMemory>& ranks) {
  RunPlan states = plan;
  states.config.parallelism.sharding = Sharding::states;
  const std::set<int> data_ranks = plan.ragged() ? extreme_data_ranks(plan.mesh) : std::set<int>{0};
  for (std::size_t d = 0; d < ranks.size(); ++d)
    for (const int data_rank : data_ranks) {
      ranks[d].traffic.raise_to(step_traffic(plan, static_cast<int>(d), data_rank));
      if (!plan.sharded()) continue;
      std::optional<Traffic>& traffic = ranks[d].states_traffic;
      if (!traffic) traffic.emplace();
      traffic->raise_to(step_traffic(states, static_cast<int>(d), data_rank));
    }
}

// What messages and temporaries take.
void add_room(const RunPlan& plan, std::vector<RankMemory>& ranks) {
  const std::vector<std::int64_t> buffers = buffer_bytes(plan);
  for (std::size_t d = 0; d < ranks.size(); ++d) {
    raise(ranks[d].buffers, buffers[d]);
    raise(ranks[d].workspace, workspace_bytes(plan, ranks[d].stages));
  }
}

}  // namespace

std::vector<RankMemory> memory_by_rank(const RunPlan& plan) {
  std::vector<RankMemory> ranks(static_cast<std::size_t>(plan.schedule.num_devices()));
  for (int rank = 0; rank < plan.mesh.size(); ++rank)
    ranks[static_cast<std::size_t>(place_of(rank, plan.mesh).pipeline)].ranks.push_back(rank);
  for (std::size_t d = 0; d < ranks.size(); ++d) {
    RankMemory& rank = ranks[d];
    rank.stages = plan.stages_of(static_cast<int>(d));
    for (const int stage : rank.stages)
      rank.layers.push_back(plan.layers_per_stage[static_cast<std::size_t>(stage)]);
    rank.stash = plan.peak_stash_bytes[d];
  }
  int microbatches = 0;  // of the step before
  for_step_kinds(plan, [&](const RunPlan& step) {
    add_room(step, ranks);
    add_traffic(step, ranks);
    if (step.schedule.num_microbatches != microbatches)
      for (std::size_t d = 0; d < ranks.size(); ++d)
        add_weights(step, static_cast<int>(d), ranks[d]);
    microbatches = step.schedule.num_microbatches;
  });
  if (const auto validation = validation_of_planned(plan)) add_room(*validation, ranks);
  return ranks;
}

}  // namespace sluice
