#include "sluice/run/runnable.h"

#include <algorithm>
#include <vector>

#include "sluice/base/error.h"

namespace sluice {

void check_runnable(const Schedule& schedule) {
  std::vector<bool> owns(static_cast<std::size_t>(schedule.num_devices()), false);
  for (int stage = 0; stage < schedule.num_stages(); ++stage)
    owns[static_cast<std::size_t>(schedule.owner_of(stage))] = true;
  if (const auto idle = std::find(owns.begin(), owns.end(), false); idle != owns.end())
    throw user_error(
        "{} has no stage of pipe 0 on device {}: there each stage is saved and its norm counted; "
        "let pipe 0 pass through every device",
        schedule.name, idle - owns.begin());
  if (schedule.num_windows > 1)
    throw user_error(
        "{} has {} windows: training updates the weights once, at the end of a step; give it a "
        "schedule of one window",
        schedule.name, schedule.num_windows);
}

}  // namespace sluice
