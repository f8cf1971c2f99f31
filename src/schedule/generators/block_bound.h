// What a building block says of its memory before anything is simulated. A stage-activation lives
// from the start of its F to the end of its W (or B), and a new one comes every period, so a stage
// of the repeated block holds at most ceil(lifespan / period) of them. Reordering fills a device up
// to what the fullest one holds, so the bound is one number for all devices.
#pragma once

#include <vector>

#include "sluice/schedule/generators/building_block.h"

namespace sluice {

struct BlockBound {
  int period = 0;
  std::vector<std::vector<int>> lifespans;  // in slots, by device and chunk
  double peak = 0;                          // stage-activations that no device exceeds
  int device = 0;                           // whose lifespans say so
};

// REQUIRES: the block is legal, the schedule made from it. A W without a slot of its own is counted
// where it comes at the latest: in the first slot after its I that is free in every period, the
// last chunk of a device choosing first. A stage holds k-1 slices more than it would microbatches.
BlockBound bound_of(const BuildingBlock& block, const Schedule& schedule);

}  // namespace sluice
