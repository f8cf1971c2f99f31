#include "sluice/cuda/kernels/launch.cuh"
#include "sluice/cuda/kernels/reduce.cuh"
#include "sluice/cuda/kernels/span.cuh"

namespace sluice::cuda::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kKept = 8;  // groups of a row that each thread keeps in registers

// The sum of exponentials seen so far: sum * exp(most).
struct Exponentials {
  float most = -INFINITY, sum = 0;
};

__device__ Exponentials together(Exponentials a, Exponentials b) {
  const float most = fmaxf(a.most, b.most);
  if (most == -INFINITY) return {most, a.sum + b.sum};  // nothing yet, or not numbers
  return {most, a.sum * __expf(a.most - most) + b.sum * __expf(b.most - most)};
}

template <int N>
__device__ void add(Exponentials& total, const float (&x)[N]) {
  float most = total.most;
#pragma unroll
  for (int j = 0; j < N; ++j)
    most = fmaxf(most, x[j]);
  const float base = most == -INFINITY ? 0.f : most;  // where all exponentials are zero
  if (most != total.most) total.sum *= __expf(total.most - base);
#pragma unroll
  for (int j = 0; j < N; ++j)
    total.sum += __expf(x[j] - base);
  total.most = most;
}

__device__ Exponentials block_total(Exponentials mine) {
  __shared__ Exponentials room[kThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    mine = together(mine, {__shfl_xor_sync(0xffffffffu, mine.most, step),
                           __shfl_xor_sync(0xffffffffu, mine.sum, step)});
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = mine;
  __syncthreads();
  Exponentials total = room[0];
  for (int warp = 1; warp < kThreads / 32; ++warp)
    total = together(total, room[warp]);
  return total;
}

// A row to a block. What registers have no room for is read again.
template <typename T, bool kGradient>
__global__ void __launch_bounds__(kThreads, 2) cross_entropy_rows(CrossEntropyCall call) {
  constexpr int N = kWidth<T>;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t target = call.targets[blockIdx.x];
  T* row = static_cast<T*>(call.logits) + blockIdx.x * static_cast<std::int64_t>(call.words);
  const Span<T> span = span_of(row, call.words);
  const int groups = static_cast<int>(span.groups), rest = static_cast<int>(span.rest);
  if (target < 0) {
    if constexpr (kGradient) {
      for (int g = thread; g < groups; g += kThreads)
        store<true>(row + span.group(g), Pack<T>{}, N);
      if (thread < rest) row[span.single(thread)] = narrow<T>(0.f);
    }
    return;
  }

  Pack<T> kept[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (const int g = thread + i * kThreads; g < groups)
      kept[i] = load<true>(row + span.group(g), N);
  const float single = thread < rest ? widen(row[span.single(thread)]) : -INFINITY;
  const float wanted = thread == 0 ? widen(row[target]) : 0.f;

  Exponentials mine;
  if (thread < rest) add(mine, {single});
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (thread + i * kThreads < groups) {
      float x[N];
      widen(kept[i], x);
      add(mine, x);
    }
  for (int g = thread + kKept * kThreads; g < groups; g += kThreads) {
    float x[N];
    widen(load<true>(row + span.group(g), N), x);
    add(mine, x);
  }
  const Exponentials total = block_total(mine);  // and from here on the row may be written
  if (thread == 0)
    atomicAdd(call.loss, static_cast<double>(total.most) + static_cast<double>(logf(total.sum)) -
                             static_cast<double>(wanted));
  if constexpr (kGradient) {
    const float share = call.scale / total.sum;
    const auto gradient = [&](float x, std::int64_t word) {
      return __expf(x - total.most) * share - (word == target ? call.scale : 0.f);
    };
    const auto write = [&](int g, const Pack<T>& pack) {
      const std::int64_t at = span.group(g);
      float x[N], out[N];
      widen(pack, x);
#pragma unroll
      for (int j = 0; j < N; ++j)
        out[j] = gradient(x[j], at + j);
      store<true>(row + at, narrow<T>(out), N);
    };
    if (thread < rest) row[span.single(thread)] = narrow<T>(gradient(single, span.single(thread)));
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (const int g = thread + i * kThreads; g < groups) write(g, kept[i]);
    for (int g = thread + kKept * kThreads; g < groups; g += kThreads)
      write(g, load<true>(row + span.group(g), N));
  }
}

}  // namespace

void cross_entropy(const CrossEntropyCall& call, cudaStream_t stream) {
  if (call.rows == 0) return;
  with_type(call.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_flag(call.gradient, [&](auto gradient) {
      cross_entropy_rows<T, decltype(gradient)::value>
          <<<static_cast<unsigned>(call.rows), kThreads, 0, stream>>>(call);
    });
  });
}

}  // namespace sluice::cuda::kernels
