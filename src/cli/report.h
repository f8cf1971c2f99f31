// Errors as users see them.
#pragma once

#include <exception>

#include "sluice/base/error.h"

namespace sluice::cli {

// Prints one clear line on standard error, and where in a step it happened below it; returns the
// exit code. Every error ends here.
ExitCode report_error(const std::exception_ptr& cause);

}  // namespace sluice::cli
