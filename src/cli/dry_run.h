// What a run will need, without running it.
#pragma once

#include <string>

#include "cli/run_setup.h"

namespace sluice::cli {

// Memory per rank, by class.
std::string dry_run_text(const RunSetup& setup);

}  // namespace sluice::cli
