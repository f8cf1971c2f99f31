// What a schedule of several windows costs per window once it has settled.
#pragma once

#include <optional>

#include "sluice/cost/costs.h"
#include "sluice/sim/simulation.h"

namespace sluice {

// Means over the windows after which the times repeat: one, or as many as it takes until messages
// and devices meet again as they did.
struct SteadyWindow {
  double added = 0;  // makespan that one more window takes
  double work = 0;   // busy time of the busiest device in it
  int period = 1;    // windows after which the times repeat
  double utilisation() const { return added > 0 ? work / added : 0; }
};

// From the schedule and its first windows; nullopt while they have not settled: too few windows.
// They have where what each of the last windows adds to the makespan repeats, through three periods
// or all that there is of them, and two at least (more where windows have fewer microbatches than
// there are devices), and every device ends as much later. Times that
// were measured may never repeat to the last digit; as they are known to a percent at best, what
// repeats to a thousandth counts, where nothing repeats exactly. `whole` is the simulation of the
// schedule.
std::optional<SteadyWindow> steady_window(const Schedule& schedule, const Costs& costs,
                                          const SimulateOptions& options, const Simulation& whole);

// The same for whoever needs a figure: where the windows have not settled, the mean of the second
// half of them. REQUIRES: at least two windows.
SteadyWindow mean_window(const Schedule& schedule, const Costs& costs);

}  // namespace sluice
