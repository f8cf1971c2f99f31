#include "sluice/cuda/kernels/launch.cuh"
#include "sluice/cuda/kernels/reduce.cuh"
#include "sluice/cuda/kernels/span.cuh"

namespace sluice::cuda::kernels {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kElementsEach = 8192;  // that a block is worth
constexpr std::int64_t kMostBlocks = 1024;    // to a range

int blocks_for(const Bounds& bounds, int ranges) {
  std::int64_t longest = 0;
  for (int n = 0; n < ranges; ++n)
    longest = std::max(longest, bounds.at[n + 1] - bounds.at[n]);
  return static_cast<int>(
      std::clamp<std::int64_t>((longest + kElementsEach - 1) / kElementsEach, 1, kMostBlocks));
}

// blockIdx.y is the range, whose groups its blocks take in turn. In fp64 throughout: conversion and
// product keep up with the memory.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_squares(const T* values, Bounds bounds, double* partials) {
  constexpr int N = kWidth<T>;
  __shared__ double room[kMaxWarps];
  const T* begin = values + bounds.at[blockIdx.y];
  const Span<T> span = span_of(begin, bounds.at[blockIdx.y + 1] - bounds.at[blockIdx.y]);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads,
                     first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  double sum = 0;
  const auto add = [&](float x) { sum = fma(static_cast<double>(x), static_cast<double>(x), sum); };
  if (first < span.rest) add(widen(begin[span.single(first)]));
#pragma unroll 4
  for (std::int64_t g = first; g < span.groups; g += step) {
    float x[N];
    widen(load<true>(begin + span.group(g), N), x);
#pragma unroll
    for (int j = 0; j < N; ++j)
      add(x[j]);
  }
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) partials[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    add_partials(const double* partials, int blocks, double* out) {
  __shared__ double room[kMaxWarps];
  double sum = 0;
  for (int n = static_cast<int>(threadIdx.x); n < blocks; n += kThreads)
    sum += partials[static_cast<std::int64_t>(blockIdx.x) * blocks + n];
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

}  // namespace

std::int64_t square_partials(const Bounds& bounds, int ranges) {
  return static_cast<std::int64_t>(blocks_for(bounds, ranges)) * ranges;
}

void block_squares(const SquaresCall& call, cudaStream_t stream) {
  if (call.ranges == 0) return;
  const int blocks = blocks_for(call.bounds, call.ranges);
  with_type(call.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    add_squares<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(call.ranges)), kThreads,
                  0, stream>>>(static_cast<const T*>(call.values), call.bounds, call.partials);
  });
  add_partials<<<static_cast<unsigned>(call.ranges), kThreads, 0, stream>>>(call.partials, blocks,
                                                                            call.out);
}

}  // namespace sluice::cuda::kernels
