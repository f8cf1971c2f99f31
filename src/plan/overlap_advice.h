// What a run whose steps overlap loses to stages of unequal work, and what would cost less. The
// busiest device sets the pace, and most of what such schedules gain over others is balance.
#pragma once

#include <string>
#include <vector>

#include "sluice/plan/plan_run.h"

namespace sluice {

// Names the busiest device, a better split of the layers, and async-1f1b on pipelines of two
// devices. "": steps do not overlap, or the stages are balanced.
std::string unbalanced_note(const RunPlan& plan, const RunTimes& times);
// The run's notes, and this one.
std::vector<std::string> advised_notes(const PlannedRun& run);

// The same run by async-1f1b on pipelines of two devices and as many times the data ranks, with
// layers dealt by work. REQUIRES: an even number of devices, more than two.
Config on_two_devices(const RunPlan& plan);

}  // namespace sluice
