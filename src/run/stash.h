// Bytes that the ops of a run leave behind on one of the ranks that share a layer, as pure
// functions of the plan and the rank's share of a slice over all sequences of its microbatch. The
// model asserts that it keeps exactly these, so the simulator's memory is the run's.
#pragma once

#include <cstdint>

#include "sluice/run/plan.h"

namespace sluice {

struct StashBytes {
  std::int64_t after_f = 0;  // from the end of F to the end of I
  std::int64_t after_i = 0;  // from the end of I to the end of W
};

// One transformer block, by the plan's level of recomputation or by another.
StashBytes block_stash(const RunPlan& plan, const TokenShare& share, RecomputeLevel level);
inline StashBytes block_stash(const RunPlan& plan, const TokenShare& share) {
  return block_stash(plan, share, plan.recompute());
}
// Final norm, output projection and loss. An embedding keeps nothing: token numbers are the step's
// batch, which is there throughout.
StashBytes head_stash(const RunPlan& plan, std::int64_t tokens);

// Gradients of keys and values of one block, kept in fp32 from the first I of a sliced microbatch
// to its last: of the slice's tokens; the last slice's are never kept.
std::int64_t key_value_gradient_bytes(const RunPlan& plan, std::int64_t tokens);

}  // namespace sluice
