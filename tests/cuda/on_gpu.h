// What the tests of the GPU's functions share: random tensors, places on the GPU with a fence
// around them, and the distance of a result from its reference.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "sluice/cuda/device.h"

namespace sluice::test {

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda::why_not(); !reason.empty()) GTEST_SKIP() << reason;
    at::manual_seed(7);
  }
};

// On the CPU, normally distributed, rounded to the type.
inline at::Tensor random(at::IntArrayRef sizes, at::ScalarType type, double scale = 1,
                         double mean = 0) {
  return at::randn(sizes).mul_(scale).add_(mean).to(type);
}

// A copy on the GPU, contiguous, that begins `offset` elements after an aligned address and has
// other elements before and behind it.
class Placed {
 public:
  explicit Placed(const at::Tensor& host, std::int64_t offset = 0)
      : begin_(kFence + offset),
        all_(at::full({host.numel() + begin_ + kFence}, kValue, host.options().device(at::kCUDA))),
        tensor(all_.narrow(0, begin_, host.numel()).view(host.sizes())) {
    tensor.copy_(host);
  }
  bool fence_stands() const {
    return all_.narrow(0, 0, begin_).eq(kValue).all().item<bool>() &&
           all_.narrow(0, begin_ + tensor.numel(), kFence).eq(kValue).all().item<bool>();
  }

 private:
  static constexpr std::int64_t kFence = 32;
  static constexpr int kValue = 77;
  std::int64_t begin_;
  at::Tensor all_;

 public:
  at::Tensor tensor;
};

// Leaves NaN in the memory that the next tensors of `bytes` are likely to get.
inline void poison(std::int64_t bytes) {
  std::vector<at::Tensor> all;
  for (int n = 0; n < 4; ++n)
    all.push_back(at::full({(bytes + 3) / 4}, std::numeric_limits<float>::quiet_NaN(),
                           at::TensorOptions(at::kCUDA).dtype(at::kFloat)));
}
inline void poison_like(const at::Tensor& x) { poison(static_cast<std::int64_t>(x.nbytes())); }

inline at::Tensor wide(const at::Tensor& x) { return x.to(at::kCPU).to(at::kDouble); }

// ||out - reference|| / ||reference||; of a reference that is zero, ||out||.
inline double distance(const at::Tensor& out, const at::Tensor& reference) {
  const double size = wide(reference).norm().item<double>();
  return (wide(out) - wide(reference)).norm().item<double>() / (size > 0 ? size : 1);
}

// What rounding to the type, and the fast functions within fp32, may cost in norm.
inline double tolerance(at::ScalarType type) {
  return type == at::kFloat ? 2e-6 : type == at::kHalf ? 6e-4 : 4e-3;
}

inline std::string sizes_of(const at::Tensor& x) {
  std::string text = c10::toString(x.scalar_type());
  for (const std::int64_t size : x.sizes())
    text += fmt::format(" {}", size);
  return text;
}

}  // namespace sluice::test
