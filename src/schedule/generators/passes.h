// The common way to write an order down: per device a list of passes (kind and local chunk), where
// the n-th occurrence of a pass takes unit n. A unit is one slice of one microbatch: forwards take
// a microbatch's slices first to last, backwards last to first.
#pragma once

#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice {

struct Pass {
  OpKind kind = OpKind::F;
  int chunk = 0;  // index into Placement::stages_of(device)
  bool joined = false;
};
using PassList = std::vector<Pass>;

// Appends `count` copies of the passes.
void repeat(PassList& list, int count, std::initializer_list<Pass> passes);

// Drops passes of units beyond the first `num_units`, where an order was built for more.
void cut(PassList& list, int num_units);

// Turns pass lists (one per device) into a schedule of m microbatches of k slices in one pipe.
// Units of microbatches >= m are dropped: any part of a valid order is valid, since dependencies
// never leave a microbatch.
Schedule schedule_from_passes(std::string name, Placement placement, int num_microbatches,
                              int num_slices, const std::vector<PassList>& devices);

}  // namespace sluice
