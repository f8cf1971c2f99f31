// Training, in the program that has torch; the other one says how to get that (engine_absent.cpp).
#pragma once

#include <functional>
#include <string>

#include "sluice/base/error.h"
#include "sluice/config/config.h"

namespace sluice::cli {

struct TrainRequest {
  std::function<LoadedConfig()> config;  // throws UserError
  std::string trace;                     // a file for the picture of the last step; "": none
  int rollback = 0;                      // checkpoints to go back before resuming
};

// Reports what goes wrong and returns the exit code.
ExitCode train(const TrainRequest& request);

}  // namespace sluice::cli
