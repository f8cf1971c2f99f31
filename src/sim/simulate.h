// The simulator: a schedule and what its ops cost in, time and memory out.
//
// A device runs its program in order; an op starts when the device is free and its inputs are
// there. Messages travel beside the compute: one leaves when its producer ends (or at its SEND,
// where the schedule has one), waits for the link to be free, occupies it for bytes / bandwidth,
// and arrives a latency later. Receives are posted early enough to cost nothing. A REDUCE_GRAD
// sends its stage's gradients over the device's data-parallel link in the same way, one after
// another and without delaying compute; the step ends when the last one has arrived. An UPDATE
// waits for the reductions of its window on every device; it occupies the device that owns the
// stage for its time, and a device with a copy goes on when the owner's weights have arrived. Times
// depend on data flow alone, so the result does not depend on the order in which the simulator
// visits the devices. With contention an op goes on at the speed that belongs to the number of
// devices that compute at the moment; messages and reductions keep their time.
#pragma once

#include <vector>

#include "sluice/cost/costs.h"
#include "sluice/schedule/schedule.h"
#include "sluice/sim/simulation.h"

namespace sluice {

// REQUIRES: validate(schedule) found no problem; costs are for this schedule. Either form will do,
// compute-only or lowered, with the same result.
Simulation simulate(const Schedule& schedule, const Costs& costs,
                    const SimulateOptions& options = {});

// The chain of spans, first to last, that decides the makespan: each starts the moment the one
// before it (or the message from it) ends. Where a reduction ends the step, the chain ends with the
// span behind which the reductions began that run from there to the end. REQUIRES: a timeline from
// simulate().
struct CriticalStep {
  int device = 0;
  int span = 0;  // index into the device's spans
};
std::vector<CriticalStep> critical_path(const Timeline& timeline);

}  // namespace sluice
