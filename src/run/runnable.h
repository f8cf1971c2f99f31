// What a valid schedule may ask for and the trainer does not do.
#pragma once

#include "sluice/config/config.h"
#include "sluice/schedule/endless.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

// Throws UserError for a device without a stage of pipe 0. REQUIRES: the schedule is valid.
void check_runnable(const Schedule& schedule);

// Throws UserError for what a run cannot do whose steps overlap. REQUIRES: the schedule has several
// windows.
void check_goes_on(const Config& config, const Schedule& schedule);

// Throws UserError where predicted weights would be needed more than one window ahead.
void check_ahead(const EndlessSchedule& endless, const Schedule& schedule);

// Throws UserError for keys that only such a run reads. REQUIRES: the schedule has one window.
void check_ends(const Config& config, const Schedule& schedule);

}  // namespace sluice
