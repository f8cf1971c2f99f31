#include <math_constants.h>

#include "sluice/base/counter_random.h"
#include "sluice/cuda/kernels/launch.cuh"

namespace sluice::cuda::kernels {
namespace {

constexpr int kThreads = 256;

__device__ double uniform(std::uint64_t bits) {
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
}

// As in model/parameter.cpp.
template <typename T>
__global__ void draw_elements(DrawCall call) {
  const std::int64_t n = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x;
  if (n >= call.count) return;
  const std::int64_t row = call.first_row + n / call.columns;
  const std::int64_t column = call.first_column + n % call.columns;
  const auto counter = static_cast<std::uint64_t>(row * call.stride + column);
  const double radius = sqrt(-2 * log(uniform(mix(call.seed + 2 * counter))));
  const double angle = 2 * CUDART_PI * uniform(mix(call.seed + 2 * counter + 1));
  static_cast<T*>(call.out)[n] =
      narrow<T>(static_cast<float>(call.deviation * radius * cos(angle)));
}

}  // namespace

void draw_normal(const DrawCall& call, cudaStream_t stream) {
  if (call.count == 0) return;
  with_type(call.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    draw_elements<T>
        <<<divide_up(call.count, static_cast<std::int64_t>(kThreads)), kThreads, 0, stream>>>(call);
  });
}

}  // namespace sluice::cuda::kernels
