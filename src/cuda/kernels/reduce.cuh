// Sums over a warp or a block, in a fixed order, that all its threads get.
#pragma once

namespace sluice::cuda::kernels {

constexpr int kMaxWarps = 32;

template <typename T>
__device__ inline T warp_sum(T x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// Over whole warps. `room` must not be in use by an earlier call that some thread may still be in.
template <typename T>
__device__ inline T block_sum(T x, T (&room)[kMaxWarps]) {
  x = warp_sum(x);
  const unsigned warps = blockDim.x / 32;
  if (warps == 1) return x;
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
  T total = 0;
  for (unsigned warp = 0; warp < warps; ++warp)
    total += room[warp];
  return total;
}

}  // namespace sluice::cuda::kernels
