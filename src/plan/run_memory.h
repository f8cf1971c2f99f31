// What every rank of a run needs, by class, before it runs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sluice/cost/traffic.h"
#include "sluice/run/plan.h"

namespace sluice {

// Bytes by class, for the ranks at one place of the pipeline: what each of them needs, or the most
// that one of them needs.
struct RankMemory {
  std::vector<int> ranks;
  std::vector<int> stages;
  std::vector<std::int64_t> layers;  // of each of its stages
  std::int64_t weights = 0, gradients = 0, optimizer = 0;
  std::int64_t stash = 0;      // its peak, exactly as the run will measure it
  std::int64_t buffers = 0;    // between stages, at most
  std::int64_t workspace = 0;  // inside an op, estimated
  std::int64_t reduction = 0;  // gradients on their way between data ranks
  std::int64_t rollback = 0;   // the copy that deferred validation goes back to
  Traffic traffic;             // of a step
  // With sharded parameters: the same if only states were sharded.
  std::optional<Traffic> states_traffic = std::nullopt;

  std::int64_t held() const { return weights + gradients + optimizer; }  // from start to end
  std::int64_t total() const { return held() + stash + buffers + workspace + reduction + rollback; }
};

// By device of the pipeline. With planned batches: the most that any step needs, all sequences
// being as long as they may be, or a validation that is dealt. REQUIRES: the plan's peaks are
// predicted.
std::vector<RankMemory> memory_by_rank(const RunPlan& plan);

}  // namespace sluice
