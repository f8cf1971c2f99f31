// A measured step beside what the simulator makes of the same schedule.
#pragma once

#include <string>
#include <vector>

#include "sluice/schedule/schedule.h"
#include "sluice/sim/simulate.h"

namespace sluice::cli {

struct StepComparison {
  Timeline measured;   // times from the start of the step, on every rank
  Timeline predicted;  // from the op times of the run, with messages that take no time

  // "last step 0.512 s, predicted 0.498 s (1.028)"
  std::string line() const;
};

// `costs` has the seconds that the run measured and the bytes that its ops keep. Of unequal
// microbatches, the seconds are those of the step itself.
StepComparison compare_step(const Schedule& schedule, std::vector<DeviceTimeline> measured,
                            const Costs& costs);

// Throws UserError unless a trace can be written there.
void check_trace(const std::string& path);

// Both in one picture or trace, measured above predicted. The ending of `path` decides: .svg,
// .html, or Chrome's JSON.
void write_trace(const std::string& path, const StepComparison& step);

}  // namespace sluice::cli
