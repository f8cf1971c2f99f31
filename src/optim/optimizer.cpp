#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice {

Optimizer::Optimizer(const OptimizerOptions& options, const std::vector<Weight>& weights)
    : options_(options) {
  for (const Weight& weight : weights) {
    Slot slot{weight, {}, {}, {}};
    if (weight.value.scalar_type() != at::kFloat) slot.master = weight.value.to(at::kFloat);
    if (options.kind == OptimizerKind::adamw) {
      slot.first_moment = at::zeros(weight.value.sizes(), at::kFloat);
      slot.second_moment = at::zeros(weight.value.sizes(), at::kFloat);
    }
    slots_.push_back(std::move(slot));
  }
}

void Optimizer::step(std::int64_t step, double learning_rate, double gradient_scale) {
  const auto n = static_cast<double>(step);
  const double first_correction = 1 - std::pow(options_.beta1, n);
  const double second_correction = 1 - std::pow(options_.beta2, n);
  for (Slot& slot : slots_) {
    at::Tensor& value = slot.master.defined() ? slot.master : slot.weight.value;
    const at::Tensor gradient =
        gradient_scale == 1 ? slot.weight.gradient : slot.weight.gradient * gradient_scale;
    if (options_.weight_decay > 0 && slot.weight.decay)
      value.mul_(1 - learning_rate * options_.weight_decay);
    if (options_.kind == OptimizerKind::sgd) {
      value.sub_(gradient, learning_rate);
    } else {
      slot.first_moment.mul_(options_.beta1).add_(gradient, 1 - options_.beta1);
      slot.second_moment.mul_(options_.beta2).addcmul_(gradient, gradient, 1 - options_.beta2);
      const at::Tensor size =
          (slot.second_moment / second_correction).sqrt_().add_(options_.epsilon);
      value.addcdiv_(slot.first_moment, size, -learning_rate / first_correction);
    }
    if (slot.master.defined()) slot.weight.value.copy_(slot.master);
  }
}

std::vector<Optimizer::State> Optimizer::states() const {
  std::vector<State> states;
  for (const Slot& slot : slots_) {
    if (slot.master.defined()) states.push_back({slot.weight.name + "/master", slot.master});
    if (slot.first_moment.defined()) {
      states.push_back({slot.weight.name + "/first_moment", slot.first_moment});
      states.push_back({slot.weight.name + "/second_moment", slot.second_moment});
    }
  }
  return states;
}

double learning_rate(double peak, std::int64_t step, std::int64_t warmup_steps,
                     std::int64_t num_steps, double min_ratio) {
  if (step <= warmup_steps)
    return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  const double span = static_cast<double>(std::max<std::int64_t>(num_steps - warmup_steps, 1));
  const double way = std::min(1.0, static_cast<double>(step - warmup_steps) / span);
  return peak * (min_ratio + (1 - min_ratio) * 0.5 * (1 + std::cos(std::numbers::pi * way)));
}

}  // namespace sluice
