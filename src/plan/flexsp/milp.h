// STAND-IN until the real file is merged.
#pragma once

#include "sluice/plan/flexsp/plan_batch.h"

namespace sluice::flexsp {

bool has_milp();
PlannedBatch plan_by_milp(const Cluster& cluster, std::span<const std::int64_t> lengths,
                          const PlanOptions& options, double seconds_limit);

}  // namespace sluice::flexsp
