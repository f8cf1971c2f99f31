#include "sluice/runtime/stage_versions.h"

#include <algorithm>
#include <vector>

#include "sluice/base/error.h"

namespace sluice {
namespace {

std::vector<at::Tensor> tensors_of(Stage& stage, at::Tensor Parameter::*tensor) {
  std::vector<at::Tensor> out;
  for (const Parameter* parameter : stage.parameters())
    out.push_back(parameter->*tensor);
  return out;
}

}  // namespace

StageVersions::StageVersions(Stage& stage, const Schedule& schedule, int accumulators,
                             std::int64_t updates)
    : stage_(stage),
      rule_(schedule.weights),
      updates_(updates),
      accumulators_(accumulators),
      weights_(tensors_of(stage, &Parameter::value), updates),
      gradients_(tensors_of(stage, &Parameter::gradient), 0) {
  for (int n = 1; n < accumulators; ++n)
    gradients_.add_zeros(n);
}

std::int64_t StageVersions::version_of_forward(std::int64_t window) const {
  return rule_ == WeightVersions::previous ? std::max<std::int64_t>(0, window - 1) : updates_;
}

void StageVersions::before(const Op& op, std::int64_t window, WindowCounts& counts) {
  if (op.kind == OpKind::F) {
    const std::int64_t version = version_of_forward(window);
    used_[op.microbatch] = version;
    counts.max_delay = std::max(counts.max_delay, window - version);
  }
  if (is_compute(op.kind)) {
    const auto used = used_.find(op.microbatch);
    SLUICE_CHECK(used != used_.end(), "microbatch {} is not open", op.microbatch);
    weights_.use(rule_ == WeightVersions::newest ? updates_ : used->second);
    if (gives_input_gradient(op.kind)) {
      const std::int64_t mismatch = weights_.in_place() - used->second;
      const auto last = static_cast<std::int64_t>(counts.by_mismatch.size()) - 1;
      ++counts.by_mismatch[static_cast<std::size_t>(std::min(mismatch, last))];
    }
  }
  if (gives_weight_gradient(op.kind)) ++counts.gradients;
  gradients_.use(window % accumulators_);
}

void StageVersions::after(const Op& op) {
  if (!gives_weight_gradient(op.kind)) return;
  used_.erase(op.microbatch);
  weights_.use(updates_);
  drop_unused();
}

bool StageVersions::is_used(std::int64_t version) const {
  return std::any_of(used_.begin(), used_.end(),
                     [&](const auto& entry) { return entry.second == version; });
}

// Of the versions from `oldest` on all are kept, of earlier ones those that open microbatches use.
// REQUIRES: the newest are in place.
void StageVersions::drop_before(std::int64_t oldest) {
  for (const std::int64_t version : weights_.keys())
    if (version < oldest && !is_used(version)) weights_.drop(version);
}

void StageVersions::drop_unused() {
  // What is to come of the window after the last update uses the weights before it.
  drop_before(rule_ == WeightVersions::previous ? updates_ - 1 : updates_);
}

void StageVersions::settle(std::int64_t window) {
  weights_.use(updates_);
  gradients_.use(window % accumulators_);
}

void StageVersions::before_update() {
  drop_before(updates_);  // the window is done, and what comes uses newer ones
  if (rule_ == WeightVersions::previous || (rule_ == WeightVersions::stash && is_used(updates_)))
    weights_.add_copy(updates_);
}

void StageVersions::after_past_update() {
  ++updates_;
  weights_.rename(updates_);
  drop_unused();
}

void StageVersions::after_update() {
  stage_.zero_gradients();
  after_past_update();
}

}  // namespace sluice
