// Elements in groups: what one access moves, packed as it lies in memory, and wide as fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "sluice/cuda/kernels/kernels.h"

namespace sluice::cuda::kernels {

// Elements in 16 bytes.
template <typename T>
constexpr int kWidth = 16 / static_cast<int>(sizeof(T));

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(__half x) { return __half2float(x); }

template <typename T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half narrow<__half>(float x) {
  return __float2half_rn(x);
}

// N elements as they lie in memory: 8, 16 or 32 bytes.
template <typename T, int N = kWidth<T>>
struct Pack {
  static constexpr int kWords = N * static_cast<int>(sizeof(T)) / 4;
  static_assert(kWords == 2 || kWords % 4 == 0, "an access has 8 or 16 bytes");
  std::uint32_t words[kWords];
};

// Two narrow elements of a word.
__device__ inline float2 widen_pair(std::uint32_t word, __nv_bfloat16) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}
__device__ inline float2 widen_pair(std::uint32_t word, __half) {
  return {__half2float(__ushort_as_half(static_cast<unsigned short>(word & 0xffffu))),
          __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)))};
}

template <typename T, int N>
__device__ inline void widen(const Pack<T, N>& pack, float (&out)[N]) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      out[i] = __uint_as_float(pack.words[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const float2 pair = widen_pair(pack.words[i], T{});
      out[2 * i] = pair.x;
      out[2 * i + 1] = pair.y;
    }
  }
}

__device__ inline std::uint32_t bits(float x) { return __float_as_uint(x); }
__device__ inline std::uint32_t bits(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
__device__ inline std::uint32_t bits(__half x) { return __half_as_ushort(x); }

template <typename T, int N>
__device__ inline Pack<T, N> pack_of(const T (&in)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < Pack<T, N>::kWords; ++i)
    if constexpr (sizeof(T) == 4)
      pack.words[i] = bits(in[i]);
    else
      pack.words[i] = bits(in[2 * i]) | bits(in[2 * i + 1]) << 16;
  return pack;
}

// Two rounded to the nearest, in one instruction.
__device__ inline std::uint32_t narrow_pair(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return bits(pair.x) | bits(pair.y) << 16;
}
__device__ inline std::uint32_t narrow_pair(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  return bits(pair.x) | bits(pair.y) << 16;
}

template <typename T, int N>
__device__ inline Pack<T, N> narrow(const float (&in)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < Pack<T, N>::kWords; ++i)
    if constexpr (sizeof(T) == 4)
      pack.words[i] = bits(in[i]);
    else
      pack.words[i] = narrow_pair(in[2 * i], in[2 * i + 1], T{});
  return pack;
}

// The N elements at p. With kVector there are that many, and p is aligned to their access;
// otherwise only the first `valid` are read, one by one, and the others are zero.
template <bool kVector, int N, typename T>
__device__ inline Pack<T, N> load(const T* p, int valid) {
  using Packed = Pack<T, N>;
  Packed pack;
  if constexpr (!kVector) {
    T out[N];
#pragma unroll
    for (int i = 0; i < N; ++i)
      out[i] = i < valid ? p[i] : narrow<T>(0.f);
    pack = pack_of(out);
  } else if constexpr (Packed::kWords == 2) {
    const uint2 word = *reinterpret_cast<const uint2*>(p);
    pack.words[0] = word.x;
    pack.words[1] = word.y;
  } else {
#pragma unroll
    for (int i = 0; i < Packed::kWords; i += 4) {
      const uint4 word = reinterpret_cast<const uint4*>(p)[i / 4];
      pack.words[i] = word.x;
      pack.words[i + 1] = word.y;
      pack.words[i + 2] = word.z;
      pack.words[i + 3] = word.w;
    }
  }
  return pack;
}
template <bool kVector, typename T>
__device__ inline Pack<T> load(const T* p, int valid) {
  return load<kVector, kWidth<T>>(p, valid);
}

// Likewise; the elements after the first `valid` are left alone.
template <bool kVector, typename T, int N>
__device__ inline void store(T* p, const Pack<T, N>& pack, int valid) {
  using Packed = Pack<T, N>;
  if constexpr (!kVector) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i >= valid) continue;
      if constexpr (sizeof(T) == 4)
        reinterpret_cast<std::uint32_t*>(p)[i] = pack.words[i];
      else
        reinterpret_cast<std::uint16_t*>(p)[i] =
            static_cast<std::uint16_t>(pack.words[i / 2] >> (16 * (i % 2)));
    }
  } else if constexpr (Packed::kWords == 2) {
    *reinterpret_cast<uint2*>(p) = uint2{pack.words[0], pack.words[1]};
  } else {
#pragma unroll
    for (int i = 0; i < Packed::kWords; i += 4)
      reinterpret_cast<uint4*>(p)[i / 4] =
          uint4{pack.words[i], pack.words[i + 1], pack.words[i + 2], pack.words[i + 3]};
  }
}

}  // namespace sluice::cuda::kernels
