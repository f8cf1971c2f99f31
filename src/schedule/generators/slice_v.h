// Sequence slicing of an order in a V: the same order, made for fewer units, becomes one for
// microbatches cut into slices. A slice holds a fraction of a stage-activation, so the peak falls.
#pragma once

#include <vector>

#include "sluice/schedule/generators/passes.h"

namespace sluice {

// From an order of N - (k-1) units (N = mk, two chunks per device, split backward) to one of N
// units that are slices of m microbatches, for schedule_from_passes. Backwards take a microbatch's
// slices last to first, so k-1 more forwards go before the first backward, and k-1 backwards follow
// the last forward. Not every order can wait that long: the result may deadlock, validate() tells.
std::vector<PassList> slice_v(const std::vector<PassList>& base, int num_slices);

}  // namespace sluice
