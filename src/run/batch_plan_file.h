// Batch plans as a file (docs/batch-plans.md): one line of JSON per step. What a planner wrote, a
// run replays.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "sluice/run/batch_plan.h"

namespace sluice {

inline constexpr std::size_t kMaxBatchPlanBytes = std::size_t{1} << 30;

struct PlannedBatch {
  BatchPlan plan;
  std::string lengths_sha256;  // of lengths_text() of the batch it was made for, small letters
};

// By step, from 1.
using PlannedBatches = std::map<std::int64_t, PlannedBatch>;

// Throws UserError (bad_data) that names the line and what is wrong with it: no such JSON, a step
// twice, or a plan that does not fit (problem_of). `name` is the file's, for errors.
PlannedBatches parse_batch_plans(std::string_view text, const std::string& name,
                                 const BatchLimits& limits);

// One line, without its end.
std::string batch_plan_line(std::int64_t step, const PlannedBatch& batch);

// The lengths of a batch as the text whose SHA-256 a plan carries: "5,17,3".
std::string lengths_text(std::span<const std::int64_t> lengths);

}  // namespace sluice
