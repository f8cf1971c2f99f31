// What must hold in every step of a run that replays planned batches: steps may differ in their
// number of microbatches, and ranks in what they have of each. Lengths are not known here, so every
// sequence counts as long as one may be.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sluice/run/plan.h"

namespace sluice {

// Fills plans.most and plans.shares. REQUIRES: the plans fit the mesh (problem_of).
void count_shares(BatchPlans& plans, const MeshShape& mesh, std::int64_t sequence_length);

// At most so many lists that cover the given ones: what one of those has of a microbatch, one of
// these has, or more. Lists that are alike are put together. REQUIRES: all are as long.
std::vector<std::vector<TokenShare>> merged_shares(std::vector<std::vector<TokenShare>> lists,
                                                   std::size_t most);

// Calls `use` with plans that have shares, one after another. For every planned step and data rank
// there is one with the schedule of that step, and with at least what the rank has of each
// microbatch. Of long programs and of many kinds of steps only a few plans are made, which cover
// all. Left out are steps whose schedule is not made yet. Without planned batches, and where it has
// shares, `plan` itself is the only one.
void for_step_kinds(const RunPlan& plan, const std::function<void(const RunPlan&)>& use);

// The same for a validation, where there is one beside replayed plans: it is dealt (longest first)
// to the run's own number of microbatches. Batches that are planned as the run goes need nothing
// beside: those of a validation are planned, too.
std::optional<RunPlan> validation_of_planned(const RunPlan& plan);

// The microbatches of a step, in words: how many there are, as far as it is known before the run,
// and what each holds.
std::string microbatches_text(const RunPlan& plan);

// Gives a plan of planned batches the shares that no step with its own number of microbatches
// exceeds.
void take_largest_shares(RunPlan& plan);

// The same plan for a search of the order of its own number of microbatches, with a few kinds of
// steps; `microbatches` is how many of those are looked at.
RunPlan for_search(RunPlan plan, int microbatches);

}  // namespace sluice
