// What stands between a function of functions.h and its kernel: checks of what it is given, and the
// launch on the current stream.
#pragma once

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/ranges.h>

#include <limits>

#include "sluice/base/error.h"
#include "sluice/cuda/kernels/kernels.h"

namespace sluice::cuda {

template <typename Call>
void launch(void (*launcher)(const Call&, cudaStream_t), const Call& call) {
  launcher(call, c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_CHECK(cudaGetLastError());
}

inline kernels::Type type_of(const at::Tensor& x, const char* name) {
  switch (x.scalar_type()) {
    case at::kFloat: return kernels::Type::f32;
    case at::kBFloat16: return kernels::Type::bf16;
    case at::kHalf: return kernels::Type::f16;
    default: throw InternalError(fmt::format("{} is {}", name, c10::toString(x.scalar_type())));
  }
}

inline void check_on_gpu(const at::Tensor& x, const char* name) {
  SLUICE_CHECK(x.defined() && x.is_cuda(), "{} is not on a GPU", name);
}

// On a GPU, contiguous, of the type and the sizes.
inline void check_tensor(const at::Tensor& x, const char* name, at::ScalarType type,
                         at::IntArrayRef sizes) {
  check_on_gpu(x, name);
  SLUICE_CHECK(x.scalar_type() == type, "{} is {}, not {}", name, c10::toString(x.scalar_type()),
               c10::toString(type));
  SLUICE_CHECK(x.sizes() == sizes, "{} is {}, not {}", name, fmt::join(x.sizes(), " x "),
               fmt::join(sizes, " x "));
  SLUICE_CHECK(x.is_contiguous(), "{} is not contiguous", name);
}

// (T, columns), contiguous.
inline void check_rows(const at::Tensor& x, const char* name) {
  SLUICE_CHECK(x.dim() == 2, "{} has {} dimensions", name, x.dim());
  check_tensor(x, name, x.scalar_type(), x.sizes());
  type_of(x, name);
}

inline int as_int(std::int64_t n) {
  SLUICE_CHECK(n >= 0 && n <= std::numeric_limits<int>::max() / 4, "{} is too many", n);
  return static_cast<int>(n);
}

// Rows are blocks of a launch.
inline std::int64_t as_blocks(std::int64_t n) {
  SLUICE_CHECK(n <= std::numeric_limits<int>::max(), "{} rows are too many", n);
  return n;
}

}  // namespace sluice::cuda
