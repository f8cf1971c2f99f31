// AMDP's run-time rule, run once and written down: a device takes the op that has waited longest.
#pragma once

#include "sluice/schedule/generators/asynchronous/slot_order.h"
#include "sluice/schedule/generators/generator.h"

namespace sluice::generators {

// `pipes` pipes, the even ones down the devices and the odd ones up, each begun two devices further
// and each with at most `in_flight` microbatches under way. The update of a window comes, on every
// device, before the first op that started when its last gradient was there: a cut in time, behind
// which nothing waits for what lies before it. REQUIRES: microbatches a multiple of the pipes.
Schedule first_in_first_out(const GeneratorOptions& options, int pipes, int in_flight,
                            const Windows& windows);

}  // namespace sluice::generators
