// The lowered form that PyTorch's pipeline runtime executes (its format "compute_comms").
#pragma once

#include "sluice/schedule/schedule.h"

namespace sluice {

// Adds what PyTorch's own lowering adds, where it adds it:
//   UNSHARD, RESHARD  gather and free the weights of a stage under FSDP. A device holds the stages
//   of
//                     its next three compute ops that differ in stage; it frees the others first.
//   REDUCE_GRAD       directly behind the last weight gradient of a stage. PyTorch divides the
//                     gradients by the number of microbatches here, and nowhere else.
//   SEND, RECV        as add_communication() places them.
// What a schedule already has of one of these three kinds stays as it is. Sluice itself needs none
// of the first two: an op gathers sharded weights by itself, unless UNSHARD has done it.
//
// REQUIRES: every op is in range and on its own device, and no op waits for ever.
Schedule lower_for_torch(const Schedule& schedule);

}  // namespace sluice
