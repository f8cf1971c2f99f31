#include "sluice/model/rms_norm.h"

#include <ATen/Parallel.h>

#include <array>
#include <cmath>

namespace sluice {
namespace {

// Compiled for three instruction sets; the best one for the machine is chosen when the program
// starts.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#define SLUICE_VECTORIZED \
  __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define SLUICE_VECTORIZED
#endif

// Sums use this many lanes on every instruction set, so that the order of additions is the same.
constexpr std::int64_t kLanes = 16;

float sum_of(const std::array<float, kLanes>& lanes) {
  float total = 0;
  for (const float lane : lanes)
    total += lane;
  return total;
}

SLUICE_VECTORIZED
void forward_row(const float* x, const float* weight, float epsilon, std::int64_t dim, float* y,
                 float* rstd) {
  std::array<float, kLanes> lanes{};
  const std::int64_t whole = dim / kLanes * kLanes;
  for (std::int64_t j = 0; j < whole; j += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l)
      lanes[static_cast<std::size_t>(l)] += x[j + l] * x[j + l];
  for (std::int64_t j = whole; j < dim; ++j)
    lanes[0] += x[j] * x[j];
  const float scale = 1 / std::sqrt(sum_of(lanes) / static_cast<float>(dim) + epsilon);
  for (std::int64_t j = 0; j < dim; ++j)
    y[j] = x[j] * scale * weight[j];
  *rstd = scale;
}

SLUICE_VECTORIZED
void backward_row(const float* dy, const float* x, const float* weight, float rstd,
                  std::int64_t dim, float* dx) {
  std::array<float, kLanes> lanes{};
  const std::int64_t whole = dim / kLanes * kLanes;
  for (std::int64_t j = 0; j < whole; j += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l)
      lanes[static_cast<std::size_t>(l)] += dy[j + l] * weight[j + l] * x[j + l];
  for (std::int64_t j = whole; j < dim; ++j)
    lanes[0] += dy[j] * weight[j] * x[j];
  const float along = sum_of(lanes) * rstd * rstd / static_cast<float>(dim);
  for (std::int64_t j = 0; j < dim; ++j)
    dx[j] = (dy[j] * weight[j] - x[j] * along) * rstd;
}

SLUICE_VECTORIZED
void add_weight_row(const float* dy, const float* x, float rstd, std::int64_t begin,
                    std::int64_t end, float* d_weight) {
  for (std::int64_t j = begin; j < end; ++j)
    d_weight[j] += dy[j] * (x[j] * rstd);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                    at::Tensor& rstd) {
  const at::Tensor in = x.contiguous();
  const std::int64_t rows = in.size(0), dim = in.size(1);
  at::Tensor y = at::empty_like(in);
  rstd = at::empty({rows, 1}, in.options());
  const float *from = in.const_data_ptr<float>(), *scale = weight.const_data_ptr<float>();
  float *to = y.mutable_data_ptr<float>(), *statistics = rstd.mutable_data_ptr<float>();
  at::parallel_for(0, rows, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      forward_row(from + row * dim, scale, static_cast<float>(epsilon), dim, to + row * dim,
                  statistics + row);
  });
  return y;
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, at::Tensor& d_weight) {
  const at::Tensor gradient = dy.contiguous(), in = x.contiguous();
  const std::int64_t rows = in.size(0), dim = in.size(1);
  at::Tensor dx = at::empty_like(in);
  const float *d = gradient.const_data_ptr<float>(), *from = in.const_data_ptr<float>(),
              *scale = weight.const_data_ptr<float>(), *statistics = rstd.const_data_ptr<float>();
  float *to = dx.mutable_data_ptr<float>(), *into = d_weight.mutable_data_ptr<float>();
  at::parallel_for(0, rows, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      backward_row(d + row * dim, from + row * dim, scale, statistics[row], dim, to + row * dim);
  });
  // Columns are divided among threads, so that rows are added in order.
  at::parallel_for(0, dim, 256, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < rows; ++row)
      add_weight_row(d + row * dim, from + row * dim, statistics[row], begin, end, into);
  });
  return dx;
}

}  // namespace sluice
