#include "sluice/optim/optimizer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>

#include "sluice/base/counter_random.h"
#include "sluice/base/text.h"
#include "sluice/comm/tensors/scalar_type.h"
#include "sluice/cuda/functions.h"

namespace sluice {
namespace {

constexpr std::int64_t kGrain = 32768;  // elements that are worth a thread
constexpr std::int64_t kChunk = 1024;   // elements that are widened at a time

using Rates = cuda::UpdateRates;

// Loops of our own instead of ATen's kernels, which round the last few elements of a tensor
// differently from the rest. Which elements are last depends on which rank owns which rows.
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

// Some elements of a tensor as fp32: in place, or as a widened copy while this object lives.
class WideElements {
 public:
  WideElements(const at::Tensor& tensor, std::int64_t begin, std::int64_t count) : count_(count) {
    if (!tensor.defined()) return;
    if (tensor.scalar_type() == at::kFloat) {
      values_ = tensor.mutable_data_ptr<float>() + begin;
      return;
    }
    narrow_ = tensor.mutable_data_ptr<at::BFloat16>() + begin;
    std::copy(narrow_, narrow_ + count, room_.begin());
    values_ = room_.data();
  }
  float* values() { return values_; }

  // Rounds narrow elements back to the tensor.
  void round() { std::copy(values_, values_ + (narrow_ ? count_ : 0), narrow_); }
  // Likewise, but stochastically: each element uses 16 of its random bits, from bit `shift` on.
  // `seed` is that of the first element.
  void round_stochastic(std::uint64_t seed, int shift) {
    for (std::int64_t n = 0; narrow_ && n < count_; ++n)
      narrow_[n] = at::BFloat16(
          sluice::round_stochastic(std::bit_cast<std::uint32_t>(values_[n]),
                                   random_bits(seed, static_cast<std::uint64_t>(n)) >> shift),
          at::BFloat16::from_bits());
  }

 private:
  std::int64_t count_;
  float* values_ = nullptr;
  at::BFloat16* narrow_ = nullptr;
  std::array<float, kChunk> room_;
};

// Elements [begin, end) of an update, on the CPU. Updates the master where there is one, else the
// weight.
void update_elements(const cuda::Update& update, std::int64_t begin, std::int64_t end) {
  for (; begin < end; begin += kChunk) {
    const std::int64_t count = std::min(kChunk, end - begin);
    const at::Tensor& updated = update.master.defined() ? update.master : update.value;
    WideElements value(updated, begin, count), gradient(update.gradient, begin, count),
        first(update.first_moment, begin, count), second(update.second_moment, begin, count);
    if (first.values())
      update_adamw(update.rates, count, value.values(), gradient.values(), first.values(),
                   second.values());
    else
      update_sgd(update.rates, count, value.values(), gradient.values());
    int shift = 0;
    for (WideElements* elements : {&value, &first, &second}) {
      if (update.stochastic)
        elements->round_stochastic(update.seed + static_cast<std::uint64_t>(begin), shift);
      else
        elements->round();
      shift += 16;
    }
  }
}

}  // namespace

std::vector<at::Tensor> Optimizer::Slot::tensors() const {
  if (first_moment.defined()) return {value, first_moment, second_moment};
  return {value};
}

Optimizer::Optimizer(const OptimizerConfig& config, std::uint64_t seed,
                     const std::vector<Weight>& weights)
    : config_(config), seed_(seed) {
  for (const Weight& weight : weights) {
    Slot slot;
    slot.weight = weight;
    slot.value = weight.own_value();
    slot.gradient = weight.own_gradient();
    slot.has_master = config.master_weights && weight.value.scalar_type() != at::kFloat;
    if (slot.has_master) slot.value = slot.value.to(at::kFloat);
    if (config.name == OptimizerKind::adamw) {
      slot.first_moment = at::zeros_like(slot.value, scalar_type(config.state_dtype));
      slot.second_moment = at::zeros_like(slot.value, scalar_type(config.state_dtype));
    }
    slots_.push_back(std::move(slot));
  }
}

void Optimizer::step(std::int64_t step, double learning_rate, double gradient_scale) {
  const auto n = static_cast<double>(step);
  const bool adamw = config_.name == OptimizerKind::adamw;
  Rates rates;
  rates.scale = static_cast<float>(gradient_scale);
  rates.beta1 = static_cast<float>(config_.beta1);
  rates.beta2 = static_cast<float>(config_.beta2);
  rates.rest1 = static_cast<float>(1 - config_.beta1);
  rates.rest2 = static_cast<float>(1 - config_.beta2);
  rates.correction = static_cast<float>(1 - std::pow(config_.beta2, n));
  rates.epsilon = static_cast<float>(config_.eps);
  rates.rate =
      static_cast<float>(adamw ? learning_rate / (1 - std::pow(config_.beta1, n)) : learning_rate);
  const auto kept = static_cast<float>(1 - learning_rate * config_.weight_decay);
  for (Slot& slot : slots_) {
    rates.keep = slot.weight.decay ? kept : 1;
    const cuda::Update update{.value = slot.weight.own_value(),
                              .master = slot.has_master ? slot.value : at::Tensor(),
                              .gradient = slot.gradient,
                              .first_moment = slot.first_moment,
                              .second_moment = slot.second_moment,
                              .rates = rates,
                              .stochastic = config_.rounding == Rounding::stochastic,
                              .seed = seed_of(slot.weight, step)};
    if (slot.value.is_cuda()) {
      cuda::update(update);
      continue;
    }
    at::parallel_for(0, slot.value.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      update_elements(update, begin, end);
    });
    if (slot.has_master) update.value.copy_(slot.value);
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
