// What every command on a training configuration starts from.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sluice/plan/plan_run.h"

namespace sluice::cli {

// The configuration file, the flags and, where the run would load a checkpoint, the model of that.
// Throws UserError.
LoadedConfig load_run_config(const std::string& path, std::span<const std::string> flags);

// The values with comm.backend as this process was started.
Config with_chosen_backend(const LoadedConfig& loaded);

// --section.key= of every key.
std::vector<std::string> config_flags();

}  // namespace sluice::cli
