#include "sluice/runtime/planned_batch.h"

#include "sluice/base/error.h"
#include "sluice/runtime/files/sha256.h"

namespace sluice {

BatchPlan batch_plan_of(const RunPlan& plan, std::int64_t step,
                        std::span<const std::int64_t> lengths) {
  if (!plan.batch_plans)
    return deal_longest_first(lengths, plan.schedule.num_microbatches, plan.mesh.data());
  const BatchPlans& plans = *plan.batch_plans;
  const auto found = plans.steps.find(step);
  if (found == plans.steps.end())
    throw bad_data("{}: has no plan for step {}; its last one is for step {}", plans.name, step,
                   plans.steps.rbegin()->first);
  const std::string is = sha256_hex(lengths_text(lengths));
  if (is != found->second.lengths_sha256)
    throw bad_data(
        "{}: the plan for step {} is of another batch: lengths_sha256 is {}, and that of this "
        "batch's lengths is {}; replay it with the data, data.overlong, debug.seed and "
        "training.global_batch_size that it was made for",
        plans.name, step, found->second.lengths_sha256, is);
  return found->second.plan;
}

const Schedule& schedule_of(const RunPlan& plan, int num_microbatches) {
  return num_microbatches == plan.schedule.num_microbatches
             ? plan.schedule
             : plan.batch_plans->schedules.at(num_microbatches);
}

RunPlan plan_of_step(const RunPlan& plan, const BatchPlan& batch,
                     std::span<const std::int64_t> lengths, int data_rank) {
  RunPlan step = plan;
  step.schedule = schedule_of(plan, batch.num_microbatches());
  step.shares = token_shares(batch, lengths, data_rank, plan.mesh.tensor);
  return step;
}

}  // namespace sluice
