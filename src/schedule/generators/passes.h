// The common way to write an order down: per device a list of passes (kind and local chunk), where
// the n-th occurrence of a pass takes unit n. A unit is one slice of one microbatch: forwards take
// a microbatch's slices first to last, backwards last to first.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace sluice {

struct Pass {
  OpKind kind = OpKind::F;
  int chunk = 0;  // index into Placement::stages_of(device)
  bool joined = false;
};
using PassList = std::vector<Pass>;

// Appends `count` copies of the passes.
void repeat(PassList& list, int count, std::initializer_list<Pass> passes);

// Turns pass lists (one per device) into a schedule of m microbatches of k slices in one pipe.
// Units of microbatches >= m are dropped, so that an order may be built for more and cut.
Schedule schedule_from_passes(std::string name, Placement placement, int num_microbatches,
                              int num_slices, const std::vector<PassList>& devices);

}  // namespace sluice
