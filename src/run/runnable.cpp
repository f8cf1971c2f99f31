#include "sluice/run/runnable.h"

#include <map>

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
  for (int d = 0; d < schedule.num_devices(); ++d) {
    std::map<int, Op> updates;  // by stage
    for (const Op& op : schedule.programs[static_cast<std::size_t>(d)]) {
      if (op.kind == OpKind::Update) updates.emplace(op.stage, op);
      const auto update = updates.find(op.stage);
      if (update != updates.end() && (is_compute(op.kind) || op.kind == OpKind::ReduceGrad))
        throw user_error(
            "{} has {} before {} on device {}: training updates the weights once, at the end of a "
            "step; remove each UPDATE that is not its stage's last op",
            schedule.name, schedule.text(update->second), schedule.text(op), d);
    }
  }
}

}  // namespace sluice
