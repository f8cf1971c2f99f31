#include "sluice/runtime/planned_batch.h"

#include <algorithm>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/run/batch_planner.h"
#include "sluice/runtime/files/sha256.h"

namespace sluice {

namespace {

const PlannedBatch& planned_step(const RunPlan& plan, std::int64_t step) {
  const BatchPlans& plans = *plan.batch_plans;
  const auto found = plans.steps.find(step);
  if (found == plans.steps.end()) {
    const auto after = plans.steps.upper_bound(step);
    const bool is_hole = after != plans.steps.end();
    throw bad_data(
        "{}: has no plan for step {}; its {} one is for step {}: plan every step up to "
        "training.steps, which is {}{}",
        plans.name, step, is_hole ? "next" : "last",
        is_hole ? after->first : plans.steps.rbegin()->first, plan.config.training.steps,
        is_hole ? "" : ", or lower that");
  }
  return found->second;
}

}  // namespace

BatchPlan batch_plan_of(const RunPlan& plan, std::int64_t step,
                        std::span<const std::int64_t> lengths) {
  if (plan.planner) return plan.planner->plan(lengths).plan;
  if (!plan.batch_plans)
    return deal_longest_first(lengths, plan.num_microbatches(), plan.mesh.data());
  const PlannedBatch& planned = planned_step(plan, step);
  const std::string is = sha256_hex(lengths_text(lengths));
  if (is != planned.lengths_sha256)
    throw bad_data(
        "{}: the plan for step {} is of another batch: lengths_sha256 is {}, and that of this "
        "batch's lengths is {}; replay it with the data, data.overlong, debug.seed and "
        "training.global_batch_size that it was made for",
        plan.batch_plans->name, step, planned.lengths_sha256, is);
  return planned.plan;
}

namespace {

// A sequence that no group holds would end the run when its step comes.
void check_longest(const RunPlan& plan, const char* data, std::span<const std::int64_t> lengths) {
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  if (longest <= plan.planner->longest) return;
  const FlexspConfig& flexsp = plan.config.flexsp;
  const bool fixed = flexsp.strategy.starts_with("fixed:");
  throw bad_data(
      "the {} data has a sequence of {}, and {} holds {}: lower training.sequence_length and set "
      "data.overlong to drop or truncate, or allow larger groups ({}) or more memory "
      "(parallelism.device_memory_mib)",
      data, counted(longest, "token"),
      fixed ? fmt::format("a group of flexsp.strategy = {}", flexsp.strategy)
            : "the largest group of ranks",
      plan.planner->longest, fixed ? "flexsp.strategy" : "flexsp.max_degree");
}

}  // namespace

std::string check_batch_plans(const RunPlan& plan, const Dataset* training, std::int64_t resumed) {
  constexpr std::int64_t kMostSequences = 10'000'000;  // a second or two
  if (plan.planner && training)
    check_longest(plan, "training", training->lengths(0, training->num_samples()));
  if (!plan.batch_plans) return "";
  const std::int64_t last = plan.config.training.steps;
  for (std::int64_t step = resumed + 1; step <= last; ++step)
    planned_step(plan, step);
  if (!training) return "";
  const std::int64_t size = plan.config.training.global_batch_size;
  const std::int64_t end =
      std::min(last, resumed + std::max<std::int64_t>(kMostSequences / size, 1));
  for (std::int64_t step = resumed + 1; step <= end; ++step)
    batch_plan_of(plan, step, training->lengths((step - 1) * size, step * size));
  if (end >= last) return "";
  return fmt::format(
      "{}: the plans up to step {} are of this data; those after it are checked when their steps "
      "come",
      plan.batch_plans->name, end);
}

void check_validation_plans(const RunPlan& plan, const Dataset& held_out) {
  if (!plan.planner) return;
  const std::int64_t most = plan.config.validation.batches;
  const std::int64_t all = held_out.num_samples();
  const std::int64_t size = plan.config.training.global_batch_size;
  check_longest(plan, "held-out validation",
                held_out.lengths(0, most > 0 ? std::min(most * size, all) : all));
}

std::int64_t padded_tokens(const RunPlan& plan, const BatchPlan& batch,
                           std::span<const std::int64_t> lengths) {
  std::int64_t tokens = 0;
  for (const auto& groups : batch.microbatches)
    for (const SequenceGroup& group : groups)
      tokens += share_of(group, lengths, plan.mesh.tensor).tokens * group.degree;
  return tokens;
}

RunPlan plan_of_step(const RunPlan& plan, const BatchPlan& batch,
                     std::span<const std::int64_t> lengths, int data_rank) {
  RunPlan step = plan;
  step.schedule = plan.schedule_of(batch.num_microbatches());
  step.shares = token_shares(batch, lengths, data_rank, plan.mesh.tensor);
  return step;
}

}  // namespace sluice
