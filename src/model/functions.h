// The arithmetic of the layers as plain functions: forward, input gradient, weight gradient. Shapes
// are written beside tensors; T is all tokens of a slice (sequences x positions).
#pragma once

#include <ATen/ATen.h>

#include "cost/model_shape.h"

namespace sluice {

// y = x w^T + b.  x (T, in), w (out, in), b (out) or undefined
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b);
// dx = dy w.
at::Tensor linear_input_grad(const at::Tensor& dy, const at::Tensor& w);
// dw += dy^T x, db += sum of dy; both fp32.
void linear_weight_grad(const at::Tensor& dy, const at::Tensor& x, at::Tensor& dw, at::Tensor& db);

// Layer norm (gpt2) or RMS norm (llama) over the last dimension.
struct Norm {
  ModelFamily family = ModelFamily::gpt2;
  double epsilon = 1e-5;
  at::Tensor weight;  // (dim)
  at::Tensor bias;    // (dim); undefined for RMS norm
};
struct NormStatistics {
  at::Tensor mean;  // (T, 1), fp32; undefined for RMS norm
  at::Tensor rstd;  // (T, 1), fp32
};
at::Tensor norm(const Norm& norm, const at::Tensor& x, NormStatistics& statistics);
struct NormGradients {
  at::Tensor input;   // (T, dim)
  at::Tensor weight;  // (dim), fp32
  at::Tensor bias;    // (dim), fp32; undefined for RMS norm
};
NormGradients norm_backward(const Norm& norm, const at::Tensor& dy, const at::Tensor& x,
                            const NormStatistics& statistics);

// tanh GELU of u (T, ffn), or silu(gate) * up of u (T, 2 ffn) with the gate first.
at::Tensor activation(ModelFamily family, const at::Tensor& u);
at::Tensor activation_backward(ModelFamily family, const at::Tensor& da, const at::Tensor& u);

// Rotates x (B, heads, n, head_dim) by position, halves paired as in HF's rotate-half; `inverse`
// turns back, which is also the gradient. positions (B, n)
at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, double theta, bool inverse);

}  // namespace sluice
