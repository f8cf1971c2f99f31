#include "sluice/cuda/kernels/launch.cuh"

namespace sluice::cuda::kernels {
namespace {

constexpr int kMostThreads = 256;

// Four at once where the GPU can.
__device__ void add_four(float* to, const float* values) {
#if __CUDA_ARCH__ >= 900
  atomicAdd(reinterpret_cast<float4*>(to), float4{values[0], values[1], values[2], values[3]});
#else
  for (int j = 0; j < 4; ++j)
    atomicAdd(to + j, values[j]);
#endif
}

// A row to a block.
template <typename T, bool kVector>
__global__ void add_to_rows(AddRowsCall call) {
  constexpr int N = kWidth<T>;
  const std::int64_t row = call.rows[blockIdx.x];
  if (row < 0 || row >= call.words) return;
  const int dim = call.dim, step = static_cast<int>(blockDim.x) * N;
  const T* from = static_cast<const T*>(call.d_rows) + blockIdx.x * static_cast<std::int64_t>(dim);
  float* to = call.gradient + row * dim;
  for (int column = static_cast<int>(threadIdx.x) * N; column < dim; column += step) {
    float values[N];
    widen(load<kVector>(from + column, dim - column), values);
    if constexpr (kVector) {
#pragma unroll
      for (int j = 0; j < N; j += 4)
        add_four(to + column + j, values + j);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (column + j < dim) atomicAdd(to + column + j, values[j]);
    }
  }
}

}  // namespace

void add_rows(const AddRowsCall& call, cudaStream_t stream) {
  if (call.count == 0 || call.dim == 0) return;
  with_type(call.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool vector = call.dim % kWidth<T> == 0 && aligned(16, call.d_rows, call.gradient);
    const int threads = warps_for(divide_up(call.dim, kWidth<T>), kMostThreads);
    with_flag(vector, [&](auto fast) {
      add_to_rows<T, decltype(fast)::value>
          <<<static_cast<unsigned>(call.count), threads, 0, stream>>>(call);
    });
  });
}

}  // namespace sluice::cuda::kernels
