#include "sluice/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "sluice/base/counter_random.h"
#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/comm/tensors/scalar_type.h"
#include "sluice/optim/muon.h"
#include "sluice/optim/update.h"

namespace sluice {
namespace {

using Rates = cuda::UpdateRates;

}  // namespace

std::vector<at::Tensor> Optimizer::Slot::tensors() const {
  if (first_moment.defined()) return {value, first_moment, second_moment};
  if (momentum.defined()) return {value, momentum};
  return {value};
}

Optimizer::Optimizer(const OptimizerConfig& config, std::uint64_t seed,
                     const std::vector<Weight>& weights, TensorGroup* tensor)
    : config_(config), seed_(seed), tensor_(tensor) {
  for (const Weight& weight : weights) {
    Slot slot;
    slot.weight = weight;
    slot.value = weight.own_value();
    slot.gradient = weight.own_gradient();
    slot.has_master = config.master_weights && weight.value.scalar_type() != at::kFloat;
    if (slot.has_master) slot.value = slot.value.to(at::kFloat);
    if (weight.matrix) {
      slot.momentum = at::zeros_like(slot.value, scalar_type(config.state_dtype));
    } else if (config.name != OptimizerKind::sgd) {
      slot.first_moment = at::zeros_like(slot.value, scalar_type(config.state_dtype));
      slot.second_moment = at::zeros_like(slot.value, scalar_type(config.state_dtype));
    }
    slots_.push_back(std::move(slot));
  }
}

MomentumProducts::Step MomentumProducts::of(std::int64_t step, double beta1, double decay) {
  const auto momentum = [&](std::int64_t n) {
    return beta1 * (1 - 0.5 * std::pow(0.96, static_cast<double>(n) * decay));
  };
  if (step != step_ + 1) {
    step_ = 0;
    product_ = 1;
  }
  while (step_ < step)
    product_ *= momentum(++step_);
  const double next = momentum(step + 1);
  return {momentum(step), next, product_, product_ * next};
}

void Optimizer::step(std::int64_t step, double learning_rate, double gradient_scale) {
  const auto n = static_cast<double>(step);
  const OptimizerConfig& c = config_;
  Rates rates;
  rates.scale = static_cast<float>(gradient_scale);
  rates.beta1 = static_cast<float>(c.beta1);
  rates.beta2 = static_cast<float>(c.beta2);
  rates.rest1 = static_cast<float>(1 - c.beta1);
  rates.rest2 = static_cast<float>(1 - c.beta2);
  rates.correction = static_cast<float>(1 - std::pow(c.beta2, n));
  rates.epsilon = static_cast<float>(c.eps);
  if (c.name == OptimizerKind::sgd) {
    rates.rate = static_cast<float>(learning_rate);
  } else if (c.name == OptimizerKind::nadam) {
    const MomentumProducts::Step nesterov = products_.of(step, c.beta1, c.momentum_decay);
    rates.rate =
        static_cast<float>(learning_rate * nesterov.next / (1 - nesterov.product_with_next));
    rates.gradient_rate =
        static_cast<float>(learning_rate * (1 - nesterov.momentum) / (1 - nesterov.product));
  } else {
    rates.rate = static_cast<float>(learning_rate / (1 - std::pow(c.beta1, n)));
  }
  const auto kept = static_cast<float>(1 - learning_rate * c.weight_decay);
  for (const Slot& slot : slots_) {
    if (slot.momentum.defined()) continue;
    rates.keep = slot.weight.decay ? kept : 1;
    update(slot, slot.gradient, rates, step);
  }
  update_matrices(step, learning_rate, gradient_scale, kept);
}

void Optimizer::update_matrices(std::int64_t step, double learning_rate, double gradient_scale,
                                float keep) {
  std::vector<MuonMatrix> matrices;
  std::vector<const Slot*> slots;
  for (const Slot& slot : slots_)
    if (slot.momentum.defined() && slot.value.numel() > 0) {
      matrices.push_back({slot.momentum, slot.gradient, *slot.weight.matrix});
      slots.push_back(&slot);
    }
  for_each_direction(
      config_, matrices, gradient_scale, tensor_, [&](std::size_t n, const at::Tensor& direction) {
        Rates rates;
        rates.keep = slots[n]->weight.decay ? keep : 1;
        rates.rate =
            static_cast<float>(learning_rate * muon_scale(config_.muon_scale, matrices[n].whole));
        update(*slots[n], direction, rates, step);
      });
}

void Optimizer::update(const Slot& slot, const at::Tensor& gradient, const Rates& rates,
                       std::int64_t step) const {
  sluice::update({.value = slot.weight.own_value(),
                  .master = slot.has_master ? slot.value : at::Tensor(),
                  .gradient = gradient,
                  .first_moment = slot.first_moment,
                  .second_moment = slot.second_moment,
                  .rates = rates,
                  .stochastic = config_.rounding == Rounding::stochastic,
                  .seed = seed_of(slot.weight, step)});
}

void Optimizer::look_ahead(std::span<const Weight> weights, std::int64_t updates,
                           double learning_rate) {
  if (updates == 0) return;
  const auto n = static_cast<double>(updates);
  const double first = 1 - std::pow(config_.beta1, n), second = 1 - std::pow(config_.beta2, n);
  for (const Weight& weight : weights) {
    const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                   [&](const Slot& s) { return s.weight.name == weight.name; });
    SLUICE_CHECK(slot != slots_.end() && slot->first_moment.defined() &&
                     slot->value.numel() == weight.value.numel(),
                 "{} has no moments of its own here", weight.name);
    const at::Tensor size = (slot->second_moment.to(at::kFloat) / second).sqrt() + config_.eps;
    const at::Tensor way = slot->first_moment.to(at::kFloat) * (learning_rate / first) / size;
    at::Tensor value = weight.value;
    value.copy_((slot->has_master ? slot->value : weight.value.to(at::kFloat)) - way);
  }
}

std::uint64_t Optimizer::seed_of(const Weight& weight, std::int64_t step) const {
  const std::uint64_t name = hash_of(weight.drawn_as.empty() ? weight.name : weight.drawn_as);
  const std::uint64_t drawn = mix(mix(seed_ ^ mix(name)) + static_cast<std::uint64_t>(step));
  return drawn + static_cast<std::uint64_t>(weight.place + weight.own.begin * weight.width());
}

void Optimizer::keep() {
  for (Slot& slot : slots_) {
    const std::vector<at::Tensor> tensors = slot.tensors();
    for (std::size_t n = 0; n < tensors.size(); ++n)
      if (n < slot.kept.size())
        slot.kept[n].copy_(tensors[n]);
      else
        slot.kept.push_back(tensors[n].clone());
  }
}

void Optimizer::restore() {
  for (Slot& slot : slots_) {
    const std::vector<at::Tensor> tensors = slot.tensors();
    for (std::size_t n = 0; n < tensors.size(); ++n)
      tensors[n].copy_(slot.kept[n]);
    // A weight is its master, rounded.
    if (slot.has_master) slot.weight.own_value().copy_(slot.value);
  }
}

std::vector<Optimizer::State> Optimizer::states() const {
  std::vector<State> states;
  for (const Slot& slot : slots_) {
    const auto add = [&](const char* state, const at::Tensor& tensor) {
      states.push_back({slot.weight.name + state, tensor, slot.weight.name, slot.weight.own});
    };
    if (slot.has_master) add("/master", slot.value);
    if (slot.momentum.defined()) add("/momentum", slot.momentum);
    if (slot.first_moment.defined()) {
      add("/first_moment", slot.first_moment);
      add("/second_moment", slot.second_moment);
    }
  }
  return states;
}

double clip_scale(double gradient_norm, double max_norm) {
  return max_norm > 0 && gradient_norm > max_norm ? max_norm / gradient_norm : 1;
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
