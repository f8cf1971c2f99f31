#include "sluice/run/runnable.h"

#include "sluice/base/error.h"

namespace sluice {

void check_runnable(const Schedule& schedule) {
  if (schedule.num_pipes() > 2)
    throw user_error(
        "{} has {} pipes: a schedule of one or two pipes can be trained with; check and simulate "
        "take any number",
        schedule.name, schedule.num_pipes());
  if (schedule.num_windows > 1)
    throw user_error(
        "{} has {} windows: training updates the weights once, at the end of a step; give it a "
        "schedule of one window",
        schedule.name, schedule.num_windows);
}

}  // namespace sluice
