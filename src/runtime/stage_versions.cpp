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
                             std::int64_t updates, Predict predict)
    : stage_(stage),
      rule_(schedule.weights),
      updates_(updates),
      oldest_(updates),
      accumulators_(accumulators),
      weights_(tensors_of(stage, &Parameter::value), updates),
      gradients_(tensors_of(stage, &Parameter::gradient), 0),
      predict_(std::move(predict)),
      window_size_(schedule.window_size()) {
  for (int n = 1; n < accumulators; ++n)
    gradients_.add_zeros(n);
}

std::int64_t StageVersions::version_of_forward(std::int64_t window) {
  switch (rule_) {
    case WeightVersions::previous: return std::max(oldest_, window - 1);
    case WeightVersions::predicted: return prediction_of(window).from;
    case WeightVersions::newest:
    case WeightVersions::stash: break;
  }
  return updates_;
}

// The first forward of a window predicts for all, if updates are to come before the window's own.
StageVersions::Prediction& StageVersions::prediction_of(std::int64_t window) {
  const auto [found, first] = predictions_.try_emplace(window, updates_, window_size_);
  if (first && updates_ < window) predict(window);
  return found->second;
}

void StageVersions::predict(std::int64_t window) {
  SLUICE_CHECK(updates_ == window - 1, "window {} after {} updates", window, updates_);
  weights_.use(updates_);
  weights_.add_copy(key_of(window));
  weights_.use(key_of(window));
  if (predict_) predict_(updates_);
}

void StageVersions::use_prediction(std::int64_t window) {
  weights_.use(weights_.has(key_of(window)) ? key_of(window) : updates_);
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
    if (rule_ == WeightVersions::predicted && op.kind == OpKind::F)
      use_prediction(window);
    else
      weights_.use(rule_ == WeightVersions::newest || rule_ == WeightVersions::predicted
                       ? updates_
                       : used->second);
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
  if (op.kind == OpKind::F && rule_ == WeightVersions::predicted) {
    const std::int64_t window = op.microbatch / window_size_;
    weights_.use(updates_);
    if (--predictions_.at(window).forwards == 0) {
      predictions_.erase(window);
      weights_.drop(key_of(window));
    }
  }
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
    if (version >= 0 && version < oldest && !is_used(version)) weights_.drop(version);
}

void StageVersions::drop_unused() {
  // What is to come of the window after the last update uses the weights before it.
  drop_before(rule_ == WeightVersions::previous ? updates_ - 1 : updates_);
}

void StageVersions::settle(std::int64_t window) {
  weights_.use(updates_);
  if (!predictions_.contains(window + 1)) weights_.drop(key_of(window + 1));
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
