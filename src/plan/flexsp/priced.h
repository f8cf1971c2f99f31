// What a batch plan costs on a cluster, whoever made it.
#pragma once

#include <cstdint>
#include <span>

#include "sluice/plan/flexsp/planned_batch.h"
#include "sluice/plan/flexsp/prices.h"

namespace sluice::flexsp {

// Groups and microbatches stay in their order. REQUIRES: the plan is one of these (padded) lengths,
// and the costs have the bandwidth of each of its degrees above 1.
PlannedBatch priced(const Cluster& cluster, std::span<const std::int64_t> lengths,
                    const BatchPlan& plan);

}  // namespace sluice::flexsp
