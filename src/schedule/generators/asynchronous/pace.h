// How long an order takes and how much it stashes, for generators that choose between orders.
#pragma once

#include "sluice/schedule/generators/generator.h"

namespace sluice::generators {

// First start to last end, where every op starts when its device is free and its inputs are there:
// at the times of the options, a message `comm` under way, updates at once. REQUIRES: a valid
// compute-only schedule.
double makespan_of(const Schedule& schedule, const GeneratorOptions& options);

// The most stage-activations that a device holds at a time, from F to W or B, by device.
std::vector<double> stash_of(const Schedule& schedule, double keep_after_i);

}  // namespace sluice::generators
