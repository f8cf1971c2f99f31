// The model of a profile, in the stages of another schedule.
#pragma once

#include "sluice/cost/costs.h"
#include "sluice/schedule/generators/generator.h"

namespace sluice {

// What the stages of the profile cost is taken apart into layers, embedding and head
// (parts_of_stages). The layers are dealt to the schedule's stages so that the slowest device is as
// fast as it can be (best_partition), and the stages of this split are put together again: times,
// bytes kept, sent and reduced. Every link is the profile's default link. The result knows its
// layers.
//
// Throws UserError where that cannot be done: a profile of one stage or without layers, of other
// slices, with contention of other devices, or with too few layers; or one that knows only B, for a
// schedule that runs I and W apart.
Costs redeal(const Costs& profile, const Schedule& schedule);

// The options for a generator that searches, with the times of the profile, whose layers are dealt
// to its stages; for others as they are.
GeneratorOptions with_profile(const Generator& generator, GeneratorOptions options,
                              const Costs& profile);

}  // namespace sluice
