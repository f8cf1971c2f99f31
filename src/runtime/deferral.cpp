#include "sluice/runtime/deferral.h"

#include <chrono>
#include <cmath>
#include <utility>

namespace sluice {

UserError diverged(std::int64_t step, const std::string& what) {
  return UserError(
      fmt::format("step {}: {}: training has diverged; lower optimizer.lr, warm up longer "
                  "(lr_scheduler.warmup_steps) or clip (training.max_norm), and start again; if "
                  "the last checkpoint diverges again, go back with train --rollback 1",
                  step, what),
      ExitCode::diverged);
}

double Deferral::scale_of(const StepTotals& totals) const {
  const double norm = plan_.clips_by_previous_norm() ? last_norm_ : totals.gradient_norm();
  return clip_scale(norm, plan_.config.training.max_norm);
}

void Deferral::update(const StepResult& result, double scale) {
  step_timed(result, scale);
  copies_.share_values();
  data_parallel_.gather_values(weights_);
}

void Deferral::step_timed(const StepResult& result, double scale) {
  if (!plan_.on_gpu()) {
    const auto started = std::chrono::steady_clock::now();
    optimizer_.step(result.number, result.learning_rate, scale);
    update_seconds_ =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    return;
  }
  if (update_) {
    // Done long ago: the norm of this step was read behind it.
    update_->second.wait();
    update_seconds_ = update_->second.seconds_since(update_->first);
  } else {
    update_.emplace();
  }
  update_->first.record();
  optimizer_.step(result.number, result.learning_rate, scale);
  update_->second.record();
}

void Deferral::begin(StepResult result, DeviceTotals mine) {
  totals_.begin(std::move(mine));
  if (deferred()) {
    optimizer_.keep();
    update(result, 1);
  }
  open_ = std::move(result);
}

StepResult Deferral::close(const StepTotals& totals) {
  StepResult result = *std::exchange(open_, std::nullopt);
  result.loss = totals.loss;
  result.gradient_norm = totals.gradient_norm();
  result.stop = totals.stop > 0;
  const double scale = scale_of(totals);
  if (deferred() && (scale != 1 || !totals.finite())) optimizer_.restore();
  if (!totals.finite()) {
    if (deferred()) data_parallel_.gather_values(weights_);
    throw diverged(result.number,
                   fmt::format("the loss is {} and the gradient norm {}", std::abs(result.loss),
                               std::abs(result.gradient_norm)));
  }
  last_norm_ = result.gradient_norm;
  if (before_update_) before_update_(result);
  if (!deferred() || scale != 1) update(result, scale);
  return result;
}

}  // namespace sluice
