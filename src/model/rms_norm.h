// RMS norm on the CPU in fp32, each row read once: ATen has no kernel for it, and composed of
// ATen's operations it takes ten passes over memory.
#pragma once

#include <ATen/ATen.h>

namespace sluice {

// y = x * rstd * weight over the last dimension of x (T, dim); rstd (T, 1) is set.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                    at::Tensor& rstd);
// dx; the weight's gradient is added to d_weight (dim), row after row.
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, at::Tensor& d_weight);

}  // namespace sluice
