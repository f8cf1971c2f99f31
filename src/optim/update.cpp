#include "sluice/optim/update.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "sluice/base/counter_random.h"

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

void update_adam(const Rates r, std::int64_t count, float* __restrict value,
                 const float* __restrict gradient, float* __restrict first,
                 float* __restrict second) {
  for (std::int64_t n = 0; n < count; ++n) {
    const float g = gradient[n] * r.scale;
    first[n] = first[n] * r.beta1 + g * r.rest1;
    second[n] = second[n] * r.beta2 + g * g * r.rest2;
    const float size = std::sqrt(second[n] / r.correction) + r.epsilon;
    value[n] = value[n] * r.keep - (r.rate * first[n] + r.gradient_rate * g) / size;
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
      update_adam(update.rates, count, value.values(), gradient.values(), first.values(),
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

void update(const cuda::Update& update) {
  if (update.value.is_cuda()) {
    cuda::update(update);
    return;
  }
  at::parallel_for(0, update.value.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    update_elements(update, begin, end);
  });
  if (update.master.defined()) {
    at::Tensor rounded = update.value;
    rounded.copy_(update.master);
  }
}

}  // namespace sluice
