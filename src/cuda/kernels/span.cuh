// A run of elements that starts anywhere, as groups of 16 bytes at their own addresses and the few
// elements before and after them.
#pragma once

#include "sluice/cuda/kernels/pack.cuh"

namespace sluice::cuda::kernels {

template <typename T>
struct Span {
  std::int64_t head;    // elements before the first group
  std::int64_t groups;  // of kWidth<T>
  std::int64_t rest;    // elements outside groups, less than 2 kWidth<T>
  // Of group g, and of the n-th element outside groups.
  __device__ std::int64_t group(std::int64_t g) const { return head + g * kWidth<T>; }
  __device__ std::int64_t single(std::int64_t n) const {
    return n < head ? n : n + groups * kWidth<T>;
  }
};

template <typename T>
__device__ inline Span<T> span_of(const T* begin, std::int64_t count) {
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(begin) % 16 /
                                              sizeof(T));  // the last boundary
  const std::int64_t head = past == 0 ? 0 : min(kWidth<T> - past, count);
  const std::int64_t groups = (count - head) / kWidth<T>;
  return {head, groups, count - groups * kWidth<T>};
}

}  // namespace sluice::cuda::kernels
