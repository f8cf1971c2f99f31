// The beginning of a schedule of several windows.
#pragma once

#include "sluice/schedule/schedule.h"

namespace sluice {

// The ops of the first `count` windows, in the order that they have. As nothing of a window waits
// for a later one, a valid schedule stays valid. REQUIRES: 1 <= count <= num_windows.
Schedule first_windows(const Schedule& schedule, int count);

}  // namespace sluice
