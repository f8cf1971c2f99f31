// Rounding up or down by chance, in proportion to the distance, so that what is too small to change
// a number changes it now and then.
#pragma once

#include "cuda/kernels/pack.cuh"

namespace sluice::cuda::kernels {

// 64 random bits for each (seed, element): a counter's stride and two rounds of mixing.
__host__ __device__ inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
__device__ inline std::uint64_t chance_of(std::uint64_t seed, std::uint64_t element) {
  return mixed(seed + element * 0x9e3779b97f4a7c15u);
}

// `chance` has 16 random bits. What T can hold stays as it is, and so do infinities and what is not
// a number; a finite number becomes no infinity.
template <typename T>
__device__ T round_by(float x, std::uint32_t chance);

template <>
__device__ inline float round_by<float>(float x, std::uint32_t) {
  return x;
}

template <>
__device__ inline __nv_bfloat16 round_by<__nv_bfloat16>(float x, std::uint32_t chance) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  const std::uint32_t exact = __float_as_uint(x), up = exact + chance;
  if ((exact & kExponent) == kExponent) return __float2bfloat16_rn(x);
  return __ushort_as_bfloat16(
      static_cast<unsigned short>(((up & kExponent) == kExponent ? exact : up) >> 16));
}

template <>
__device__ inline __half round_by<__half>(float x, std::uint32_t chance) {
  constexpr float kMost = 65504.f, kSmallestNormal = 0x1p-14f, kStep = 0x1p-24f;
  constexpr std::uint32_t kDropped = 0x1fffu;  // bits of an fp32 number that a normal one has not
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
