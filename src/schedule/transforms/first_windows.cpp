#include "sluice/schedule/transforms/first_windows.h"

#include "sluice/base/error.h"

namespace sluice {

Schedule first_windows(const Schedule& schedule, int count) {
  SLUICE_CHECK(1 <= count && count <= schedule.num_windows, "{} of {} windows", count,
               schedule.num_windows);
  Schedule out = without_ops(schedule);
  out.num_windows = count;
  out.num_microbatches = count * schedule.window_size();
  for (std::size_t d = 0; d < schedule.programs.size(); ++d)
    for (Op op : schedule.programs[d]) {
      if (schedule.window_of(op) >= count) continue;
      if (count == 1 && has_window(op.kind)) op.microbatch = -1;  // one window has no number
      out.programs[d].push_back(op);
    }
  return out;
}

}  // namespace sluice
