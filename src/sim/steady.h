// What a schedule of several windows costs per window once it has settled.
#pragma once

#include <optional>

#include "sluice/cost/costs.h"
#include "sluice/sim/simulation.h"

namespace sluice {

struct SteadyWindow {
  double added = 0;  // makespan that one more window takes
  double work = 0;   // busy time of the busiest device in it
  double utilisation() const { return added > 0 ? work / added : 0; }
};

// From the schedule and its first windows; nullopt while the last two do not take the same: too few
// windows. `whole` is the simulation of the schedule.
std::optional<SteadyWindow> steady_window(const Schedule& schedule, const Costs& costs,
                                          const SimulateOptions& options, const Simulation& whole);

}  // namespace sluice
