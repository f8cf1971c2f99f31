#include "optim/optimizer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice {
namespace {

constexpr std::int64_t kGrain = 32768;  // elements that a thread is worth

// The numbers of one update.
struct Rates {
  float scale = 1;  // of the gradient
  float keep = 1;   // of the weight, after decay
  float rate = 0;   // corrected, for AdamW
  float beta1 = 0, beta2 = 0, rest1 = 1, rest2 = 1;
  float correction = 1;  // of the second moment
  float epsilon = 0;
};

// Loops of our own rather than ATen's kernels: those round the last few elements of a tensor
// otherwise than the rest, and which elements are last depends on who owns which rows.
void update_sgd(const Rates r, std::int64_t count, float* __restrict value,
                const float* __restrict gradient) {
  for (std::int64_t n = 0; n < count; ++n)
    value[n] = value[n] * r.keep - r.rate * (gradient[n] * r.scale);
}

void update_adamw(const Rates r, std::int64_t count, float* __restrict value,
                  const float* __restrict gradient, float* __restrict first,
                  float* __restrict second) {
  for (std::int64_t n = 0; n < count; ++n) {
    const float g = gradient[n] * r.scale;
    first[n] = first[n] * r.beta1 + g * r.rest1;
    second[n] = second[n] * r.beta2 + g * g * r.rest2;
    const float size = std::sqrt(second[n] / r.correction) + r.epsilon;
    value[n] = value[n] * r.keep - r.rate * first[n] / size;
  }
}

}  // namespace

std::vector<at::Tensor> Optimizer::Slot::tensors() const {
  if (first_moment.defined()) return {value, first_moment, second_moment};
  return {value};
}

Optimizer::Optimizer(const OptimizerOptions& options, const std::vector<Weight>& weights)
    : options_(options) {
  for (const Weight& weight : weights) {
    Slot slot;
    slot.weight = weight;
    slot.value = weight.own_value();
    slot.gradient = weight.own_gradient();
    slot.has_master = weight.value.scalar_type() != at::kFloat;
    if (slot.has_master) slot.value = slot.value.to(at::kFloat);
    if (options.kind == OptimizerKind::adamw) {
      slot.first_moment = at::zeros_like(slot.value);
      slot.second_moment = at::zeros_like(slot.value);
    }
    slots_.push_back(std::move(slot));
  }
}

void Optimizer::step(std::int64_t step, double learning_rate, double gradient_scale) {
  const auto n = static_cast<double>(step);
  const bool adamw = options_.kind == OptimizerKind::adamw;
  Rates rates;
  rates.scale = static_cast<float>(gradient_scale);
  rates.beta1 = static_cast<float>(options_.beta1);
  rates.beta2 = static_cast<float>(options_.beta2);
  rates.rest1 = static_cast<float>(1 - options_.beta1);
  rates.rest2 = static_cast<float>(1 - options_.beta2);
  rates.correction = static_cast<float>(1 - std::pow(options_.beta2, n));
  rates.epsilon = static_cast<float>(options_.epsilon);
  rates.rate =
      static_cast<float>(adamw ? learning_rate / (1 - std::pow(options_.beta1, n)) : learning_rate);
  const auto kept = static_cast<float>(1 - learning_rate * options_.weight_decay);
  for (Slot& slot : slots_) {
    rates.keep = slot.weight.decay ? kept : 1;
    float* value = slot.value.mutable_data_ptr<float>();
    const float* gradient = slot.gradient.const_data_ptr<float>();
    float* first = adamw ? slot.first_moment.mutable_data_ptr<float>() : nullptr;
    float* second = adamw ? slot.second_moment.mutable_data_ptr<float>() : nullptr;
    at::parallel_for(0, slot.value.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      if (adamw)
        update_adamw(rates, end - begin, value + begin, gradient + begin, first + begin,
                     second + begin);
      else
        update_sgd(rates, end - begin, value + begin, gradient + begin);
    });
    if (slot.has_master) slot.weight.own_value().copy_(slot.value);
  }
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
