// The plan of a batch, out of those that a run replays.
#pragma once

#include <cstdint>
#include <span>

#include "sluice/run/plan.h"

namespace sluice {

// The plan of a step. Throws UserError (bad_data) where there is none, or where it was made for
// sequences of other lengths.
const BatchPlan& planned_batch(const BatchPlans& plans, std::int64_t step,
                               std::span<const std::int64_t> lengths);

}  // namespace sluice
