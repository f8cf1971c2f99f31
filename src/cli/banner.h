// What a run says about itself before its first step.
#pragma once

#include <string>
#include <vector>

#include "sluice/run/plan.h"
#include "sluice/runtime/datasets.h"

namespace sluice::cli {

// Lines for people: model, mesh, schedule, data, folders. `device` is what the ranks compute on.
std::vector<std::string> banner(const RunPlan& plan, const Datasets& data, int threads_per_rank,
                                const std::string& device);

}  // namespace sluice::cli
