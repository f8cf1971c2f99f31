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

// The configuration file, the flags and, where the run would load a checkpoint, the model of that.
// Throws UserError.
LoadedConfig load_run_config(const std::string& path, std::span<const std::string> flags);

// Throws UserError for values that do not fit together and for an invalid schedule.
RunSetup set_up_run(const LoadedConfig& loaded);

// The schedule of a resolved configuration, lowered and proved. Throws UserError where it is
// invalid, does not fit the configuration, or is one that the trainer cannot run.
Schedule make_schedule(const Config& config);

}  // namespace sluice::cli
