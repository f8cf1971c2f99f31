#include "sluice/runtime/planned_batch.h"

#include "sluice/base/error.h"
#include "sluice/runtime/files/sha256.h"

namespace sluice {

const BatchPlan& planned_batch(const BatchPlans& plans, std::int64_t step,
                               std::span<const std::int64_t> lengths) {
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

}  // namespace sluice
