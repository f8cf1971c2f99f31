#include "sluice/plan/run_times.h"

#include "sluice/base/error.h"
#include "sluice/base/files.h"
#include "sluice/base/text.h"

namespace sluice {
namespace {

void check_measured_on(const MeasuredOn& measured, const MeasuredOn& run) {
  if (const auto found = measured_differences(measured, run); !found.empty())
    throw user_error("{}; measure again (sluice profile) or correct the configuration",
                     join(found, ", "));
}

}  // namespace

RunTimes run_times(const RunPlan& plan) {
  RunTimes times;
  times.parts =
      counted_part_times(plan.shape, plan.recompute(), plan.config.training.sequence_length);
  const std::string& file = plan.config.parallelism.costs;
  if (file.empty()) return times;
  try {
    const Costs profile = stage_costs_from_json(read_text(file, kMaxCostsBytes));
    if (profile.measured_on) {
      MeasuredOn run = measured_on(plan);
      // Microbatches of unequal sequences have any number of them.
      if (plan.ragged()) run.sequences = profile.measured_on->sequences;
      check_measured_on(*profile.measured_on, run);
      times.checked = true;
    }
    times.flexsp = profile.flexsp;
    times.parts = measured_part_times(profile, times.parts);
    times.link = profile.default_link;
    times.measured = true;
    if (!profile.measured_on) times.note = measured_on_note(file, profile);
  } catch (const UserError& error) {
    throw UserError(fmt::format("parallelism.costs is '{}': {}", file, error.what()), error.code());
  }
  return times;
}

}  // namespace sluice
