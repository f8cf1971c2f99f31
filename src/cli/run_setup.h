// What every command on a training configuration starts from: the values, the schedule they name,
// and the memory it will take.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/options.h"
#include "sim/simulate.h"

namespace sluice::cli {

struct RunSetup {
  Config config;      // resolved
  Schedule schedule;  // lowered and proved
  TrainerOptions options;
  Simulation memory;               // bytes as they will be; times mean nothing
  std::vector<std::string> notes;  // what the configuration states and the run changes
};

// Throws UserError for values that do not fit together and for an invalid schedule.
RunSetup set_up_run(const LoadedConfig& loaded);

// The schedule of a resolved configuration, lowered and proved.
Schedule make_schedule(const Config& config);

}  // namespace sluice::cli
