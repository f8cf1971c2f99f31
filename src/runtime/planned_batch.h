// How the sequences of a step are dealt, where they are unequal: as its plan says, which a run
// replays or makes, or longest first.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "sluice/data/dataset.h"
#include "sluice/run/plan.h"

namespace sluice {

// The plan of a step whose sequences have these lengths. Throws UserError (bad_data) where the run
// replays plans and has none for it, or has one that was made for sequences of other lengths, and
// what the planner throws.
BatchPlan batch_plan_of(const RunPlan& plan, std::int64_t step,
                        std::span<const std::int64_t> lengths);

// Whether the run can take all steps after `resumed`: throws what batch_plan_of would throw for any
// of them. Lengths are compared as far as that is quick; the return value then says which were not.
// "": all were. `training` may be null: lengths are not known.
std::string check_batch_plans(const RunPlan& plan, const Dataset* training, std::int64_t resumed);

// Whether every held-out sequence that a validation takes fits a group, where batches are planned.
// Throws UserError (bad_data) where one does not.
void check_validation_plans(const RunPlan& plan, const Dataset& held_out);

// The tokens of all sequences, and what pads those of each group.
std::int64_t padded_tokens(const RunPlan& plan, const BatchPlan& batch,
                           std::span<const std::int64_t> lengths);

// The run as it is in one step, on one data rank: schedule and shares are those of `batch`.
RunPlan plan_of_step(const RunPlan& plan, const BatchPlan& batch,
                     std::span<const std::int64_t> lengths, int data_rank);

}  // namespace sluice
