#include "sluice/sim/steady.h"

#include <algorithm>
#include <cmath>

#include "sluice/schedule/transforms/first_windows.h"
#include "sluice/sim/simulate.h"

namespace sluice {

std::optional<SteadyWindow> steady_window(const Schedule& schedule, const Costs& costs,
                                          const SimulateOptions& options, const Simulation& whole) {
  const int windows = schedule.num_windows;
  if (windows < 3) return std::nullopt;
  SimulateOptions without_timeline = options;
  without_timeline.timeline = false;
  const Simulation before = simulate(first_windows(schedule, windows - 1), costs, without_timeline);
  const Simulation two_before =
      simulate(first_windows(schedule, windows - 2), costs, without_timeline);
  SteadyWindow steady;
  steady.added = whole.makespan - before.makespan;
  const double added_before = before.makespan - two_before.makespan;
  if (std::abs(steady.added - added_before) > 1e-9 * whole.makespan) return std::nullopt;
  for (std::size_t d = 0; d < whole.devices.size(); ++d)
    steady.work = std::max(steady.work, whole.devices[d].busy - before.devices[d].busy);
  return steady;
}

}  // namespace sluice
