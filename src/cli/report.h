// Errors as users see them.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "sluice/base/error.h"

namespace sluice::cli {

// A text of the library with its fields as flags: `memory_cap` is --memory-cap.
std::string as_flags(std::string_view text);

// Prints one clear line on standard error, and where in a step it happened below it; returns the
// exit code. Every error ends here.
ExitCode report_error(const std::exception_ptr& cause);

}  // namespace sluice::cli
