// What launchers share: from a type in a variable to a type of the language, alignment, sizes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "sluice/cuda/kernels/pack.cuh"

namespace sluice::cuda::kernels {

template <typename T>
struct Tag {
  using type = T;
};

// launch(Tag<T>{}) with the C++ type of `type`.
template <typename Launch>
void with_type(Type type, const Launch& launch) {
  switch (type) {
    case Type::f32: return launch(Tag<float>{});
    case Type::bf16: return launch(Tag<__nv_bfloat16>{});
    case Type::f16: return launch(Tag<__half>{});
  }
}

// launch(std::true_type{}) or launch(std::false_type{}).
template <typename Launch>
void with_flag(bool flag, const Launch& launch) {
  if (flag)
    launch(std::true_type{});
  else
    launch(std::false_type{});
}

template <typename... Pointers>
bool aligned(std::uintptr_t bytes, Pointers... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % bytes == 0) && ...);
}

// Whether groups of `width` elements of every head can be moved by accesses of 16 bytes.
inline bool regular(const Heads& part, int width) {
  return aligned(16, part.data) && part.batch_stride % width == 0 &&
         part.head_stride % width == 0 && part.token_stride % width == 0;
}

__host__ __device__ inline int divide_up(int a, int b) { return (a + b - 1) / b; }
inline unsigned divide_up(std::int64_t a, std::int64_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}
// Whole warps for so many threads, and at most so many.
inline int warps_for(int threads, int most) { return std::min(divide_up(threads, 32) * 32, most); }

}  // namespace sluice::cuda::kernels
