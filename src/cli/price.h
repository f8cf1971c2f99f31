// From a schedule to what a user asked to see of it: prove it, price it, write it.
#pragma once

#include "sluice/base/error.h"
#include "sluice/cli/output.h"

namespace sluice::cli {

struct PriceRequest {
  Schedule schedule;
  const PricingFlags& pricing;
  std::int64_t tokens = 0;  // of a sequence, where the user states them; else 0
  int buffers = -1;
  bool timeline = false;
};

// Validates, and where the schedule can run, simulates.
PricedSchedule price(PriceRequest request);

// What the generator makes; one that searches does so with the times of the profile, whose layers
// are dealt to its stages (redeal).
Schedule generate_with_profile(const Generator& generator, GeneratorOptions options,
                               const Costs& profile);

// Writes it in the format; an invalid schedule's problems go to standard error (json: into the
// object). Returns ok or invalid_schedule.
ExitCode write_priced(const PricedSchedule& priced, Format format, bool timeline,
                      const OutputFlags& output);

}  // namespace sluice::cli
