// The simulator for devices that share power and clocks, so that idle ones make busy ones faster.
#pragma once

#include "sluice/cost/costs.h"
#include "sluice/schedule/schedule.h"
#include "sluice/sim/simulation.h"

namespace sluice {

// As simulate(), which calls it. REQUIRES: costs.contention has one entry per device.
Simulation simulate_contended(const Schedule& schedule, const Costs& costs,
                              const SimulateOptions& options);

}  // namespace sluice
