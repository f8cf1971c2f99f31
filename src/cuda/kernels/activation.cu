#include "sluice/cuda/kernels/launch.cuh"

namespace sluice::cuda::kernels {
namespace {

constexpr int kMostThreads = 512;
constexpr int kAtOnce = 2;  // groups that a thread reads before it computes

// sigmoid(x) and what it lacks to 1, by the fast exponential and quotient: a few units in the last
// place of fp32 each. Beyond the limit, where the exponential would leave fp32, nothing changes.
struct Sigmoid {
  float value, rest;
};
__device__ Sigmoid sigmoid(float x) {
  const float e = __expf(fminf(-x, 80.f)), value = __fdividef(1.f, 1.f + e);
  return {value, e * value};
}

// GELU by tanh is x sigmoid(2 z) with z = kRoot (x + kCubic x^3).
constexpr float kRoot = 0.7978845608028654f;  // sqrt(2 / pi)
constexpr float kCubic = 0.044715f;
constexpr float kHalfRoot = 0.7071067811865476f;  // sqrt(1 / 2)
constexpr float kDensity = 0.3989422804014327f;   // 1 / sqrt(2 pi)

__device__ float normal_share(float x) { return 0.5f * (1.f + erff(x * kHalfRoot)); }

template <Gate kGate>
__device__ float value(float x, float up) {
  if constexpr (kGate == Gate::swiglu) return x * sigmoid(x).value * up;
  if constexpr (kGate == Gate::gelu_tanh)
    return x * sigmoid(2 * kRoot * x * (1.f + kCubic * x * x)).value;
  if constexpr (kGate == Gate::gelu_erf) return x * normal_share(x);
}

// The gradient of x; d_up that of `up`, of swiglu only.
template <Gate kGate>
__device__ float slope(float da, float x, float up, float& d_up) {
  if constexpr (kGate == Gate::swiglu) {
    const Sigmoid s = sigmoid(x);
    d_up = da * x * s.value;
    return da * up * s.value * (1.f + x * s.rest);
  }
  if constexpr (kGate == Gate::gelu_tanh) {
    const Sigmoid s = sigmoid(2 * kRoot * x * (1.f + kCubic * x * x));
    return da * s.value * (1.f + x * s.rest * 2 * kRoot * (1.f + 3 * kCubic * x * x));
  }
  if constexpr (kGate == Gate::gelu_erf)
    return da * (normal_share(x) + x * kDensity * __expf(-0.5f * x * x));
}

// A row to a block, forward or, with kBackward, back.
template <typename T, Gate kGate, bool kVector, bool kBackward>
__global__ void __launch_bounds__(kMostThreads) activate_rows(ActivationCall call) {
  constexpr int N = kWidth<T>;
  constexpr bool kGated = kGate == Gate::swiglu;
  const int width = call.width, step = static_cast<int>(blockDim.x) * N;
  const std::int64_t row = blockIdx.x * static_cast<std::int64_t>(width);
  const T* u = static_cast<const T*>(call.u) + (kGated ? 2 * row : row);
  const T* da = kBackward ? static_cast<const T*>(call.da) + row : nullptr;
  T* out = static_cast<T*>(call.out) + (kGated && kBackward ? 2 * row : row);
  for (int start = static_cast<int>(threadIdx.x) * N; start < width; start += kAtOnce * step) {
    Pack<T> x_pack[kAtOnce] = {}, up_pack[kAtOnce] = {}, da_pack[kAtOnce] = {};
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (const int column = start + k * step; column < width) {
        x_pack[k] = load<kVector>(u + column, width - column);
        if (kGated) up_pack[k] = load<kVector>(u + width + column, width - column);
        if (kBackward) da_pack[k] = load<kVector>(da + column, width - column);
      }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (const int column = start + k * step; column < width) {
        float x[N], up[N], d[N], result[N], d_up[N] = {};
        widen(x_pack[k], x);
        widen(up_pack[k], up);
        widen(da_pack[k], d);
#pragma unroll
        for (int j = 0; j < N; ++j)
          result[j] =
              kBackward ? slope<kGate>(d[j], x[j], up[j], d_up[j]) : value<kGate>(x[j], up[j]);
        store<kVector>(out + column, narrow<T>(result), width - column);
        if (kGated && kBackward)
          store<kVector>(out + width + column, narrow<T>(d_up), width - column);
      }
  }
}

template <typename T, bool kVector, bool kBackward>
void launch(const ActivationCall& call, cudaStream_t stream) {
  const int groups = divide_up(call.width, kWidth<T>);
  const int threads = warps_for(divide_up(groups, kAtOnce), kMostThreads);
  const auto run = [&](auto* kernel) {
    kernel<<<static_cast<unsigned>(call.rows), threads, 0, stream>>>(call);
  };
  switch (call.gate) {
    case Gate::gelu_tanh: return run(activate_rows<T, Gate::gelu_tanh, kVector, kBackward>);
    case Gate::gelu_erf: return run(activate_rows<T, Gate::gelu_erf, kVector, kBackward>);
    case Gate::swiglu: return run(activate_rows<T, Gate::swiglu, kVector, kBackward>);
  }
}

template <bool kBackward>
void start(const ActivationCall& call, cudaStream_t stream) {
  if (call.rows == 0 || call.width == 0) return;
  with_type(call.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool vector = call.width % kWidth<T> == 0 && aligned(16, call.da, call.u, call.out);
    with_flag(vector,
              [&](auto fast) { launch<T, decltype(fast)::value, kBackward>(call, stream); });
  });
}

}  // namespace

void activation(const ActivationCall& call, cudaStream_t stream) { start<false>(call, stream); }

void activation_backward(const ActivationCall& call, cudaStream_t stream) {
  start<true>(call, stream);
}

}  // namespace sluice::cuda::kernels
