// The methods of updating a pipeline's weights, side by side for one run: synchronous 1F1B, and the
// asynchronous schedules with what each keeps of weights, gradients and optimizer states.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sluice/plan/plan_run.h"
#include "sluice/plan/run_memory.h"

namespace sluice {

struct UpdateMethod {
  std::string name;      // "amdp, order R"
  std::string settings;  // the keys that make a run of it
  // Empty where the run cannot be of this method: `why_not` says why.
  std::optional<RankMemory> largest;  // the rank that needs most
  double relative_step = 0;           // its time, to that of 1f1b
  int max_mismatch = 0, max_delay = 0;
  std::string why_not;
};

// The same model, batch, microbatches and devices by every method.
std::vector<UpdateMethod> update_methods(const PlannedRun& run);

}  // namespace sluice
