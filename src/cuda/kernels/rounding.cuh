// Rounding up or down by chance, as base/counter_random.h says, to the types of a weight.
#pragma once

#include "sluice/base/counter_random.h"
#include "sluice/cuda/kernels/pack.cuh"

namespace sluice::cuda::kernels {

// By the lowest 16 bits of `random`. What T can hold stays as it is, and so do infinities and what
// is not a number.
template <typename T>
__device__ T round_by(float x, std::uint64_t random);

template <>
__device__ inline float round_by<float>(float x, std::uint64_t) {
  return x;
}

template <>
__device__ inline __nv_bfloat16 round_by<__nv_bfloat16>(float x, std::uint64_t random) {
  return __ushort_as_bfloat16(round_stochastic(__float_as_uint(x), random));
}

template <>
__device__ inline __half round_by<__half>(float x, std::uint64_t random) {
  const auto chance = static_cast<std::uint32_t>(random & 0xffffu);
  constexpr float kMost = 65504.f, kSmallestNormal = 0x1p-14f, kStep = 0x1p-24f;
  constexpr std::uint32_t kDropped = 0x1fffu;  // bits that a normal number has no room for
  const float size = fabsf(x);
  if (!(size < kMost)) return __float2half_rn(size <= 3.4028235e38f ? copysignf(kMost, x) : x);
  if (size < kSmallestNormal) {
    const float steps = size / kStep, whole = floorf(steps);
    const bool up = (steps - whole) * 65536.f > static_cast<float>(chance);
    return __float2half_rn(copysignf((up ? whole + 1.f : whole) * kStep, x));
  }
  return __float2half_rn(__uint_as_float((__float_as_uint(x) + (chance >> 3)) & ~kDropped));
}

}  // namespace sluice::cuda::kernels
