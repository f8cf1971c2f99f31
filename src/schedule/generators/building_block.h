// Building blocks: one microbatch's layout over all devices, at unit times. Microbatch j is the
// block shifted by j periods. An order is made from a block in three steps:
//
//   repeat    lay the shifted copies over each other; nothing collides in a legal block
//   squeeze   start every pass as early as its device and its inputs allow, order unchanged
//   reorder   move warm-up and cool-down passes into earlier holes without raising the peak
#pragma once

#include <string>
#include <vector>

#include "sluice/schedule/generators/passes.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

// Start slots of one microbatch, one entry per stage. F, I and W take one slot, a fused B two.
struct BuildingBlock {
  Placement placement;  // one pipe
  int period = 0;       // slots between two microbatches
  bool fused = false;   // backward holds B, not I
  std::vector<int> forward;
  std::vector<int> backward;
  // Empty: every W takes the first slot that is free after its I. Always empty where fused.
  std::vector<int> weight;
};

// Why a block of the right sizes is not legal (two passes of one device in the same slot modulo the
// period, or a pass before its input), or "" if it is. Stages are named by device and chunk.
std::string block_problem(const BuildingBlock& block);

// Repeat, squeeze and reorder a legal block for m microbatches of k slices. Slices flow like
// microbatches, but backwards take those of a microbatch last to first, so the block runs its
// backwards k-1 periods later and each stage holds k-1 slices more. The result is free of deadlock,
// its peak is at most that of the repeated block, and it depends on nothing but the block, m and k.
// A UserError if devices x slots are too many to lay out.
std::vector<PassList> order_from_block(const BuildingBlock& block, int num_microbatches,
                                       int num_slices = 1);

}  // namespace sluice
