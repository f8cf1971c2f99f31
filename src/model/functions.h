// The arithmetic of the layers as plain functions: forward, input gradient, weight gradient. Shapes
// are written beside tensors; T is all tokens of a slice (sequences x positions).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/cost/model_shape.h"
#include "sluice/model/parameter.h"

namespace sluice {

struct Linear {
  at::Tensor weight;  // (out, in)
  at::Tensor bias;    // (out), or undefined
  at::Tensor d_weight;
  at::Tensor d_bias;      // likewise
  bool adds_bias = true;  // true on exactly one of the ranks whose outputs are summed
  // Training repeats its shapes, so trying out algorithms pays off (cuda/products.h). In inference
  // it does not: documents and prompts have any length.
  bool trained = true;
};
// Rows of a matmul's weight that are a parameter of their own.
struct LinearPart {
  std::string name;  // of the parameters, `name`.weight and `name`.bias
  Shard shard;       // of the weight
  Shard bias = {};   // of the bias; empty: there is none
};
struct LinearOptions {
  std::vector<LinearPart> parts;  // one below the other
  double deviation = 0;           // of the weight's first values, drawn by (seed, name)
  std::uint64_t seed = 0;
  std::string drawn_as = {};  // another name to draw by; empty: its own
  TensorKind kind = {};
};
Linear make_linear(std::vector<Parameter>& parameters, const LinearOptions& options);

// y = x w^T + b.  x (T, in)
at::Tensor linear(const at::Tensor& x, const Linear& linear);
// dx = dy w.
at::Tensor linear_input_grad(const at::Tensor& dy, const at::Tensor& w);
void linear_input_grad(const at::Tensor& dy, const at::Tensor& w, at::Tensor& dx);
// dw += dy^T x, db += sum of dy.
void linear_weight_grad(const at::Tensor& dy, const at::Tensor& x, Linear& linear);

// Layer norm, or RMS norm where there is no bias, over the last dimension.
struct Norm {
  double epsilon = 1e-5;
  at::Tensor weight;  // (dim)
  at::Tensor bias;    // (dim); undefined for RMS norm
  at::Tensor d_weight;
  at::Tensor d_bias;  // likewise
};
// Makes the norm of the model's family, with its weight ones and its bias, if any, zeros. Adds the
// parameters `name`.weight and `name`.bias, each with the shard `shard`.
Norm make_norm(const ModelShape& shape, const TensorKind& kind, const std::string& name,
               const Shard& shard, std::vector<Parameter>& parameters);
struct NormStatistics {
  at::Tensor mean;  // (T, 1), fp32; undefined for RMS norm
  at::Tensor rstd;  // (T, 1), fp32
};
at::Tensor norm(const Norm& norm, const at::Tensor& x, NormStatistics& statistics);
// The norm of x + addend. Stores this sum in `sum`.
at::Tensor add_norm(const Norm& norm, const at::Tensor& x, const at::Tensor& addend,
                    at::Tensor& sum, NormStatistics& statistics);
struct NormGradients {
  at::Tensor input;   // (T, dim)
  at::Tensor weight;  // (dim), fp32
  at::Tensor bias;    // (dim), fp32; undefined for RMS norm
};
// An `addend` (T, dim), if given, is added to the gradient of the input.
NormGradients norm_backward(const Norm& norm, const at::Tensor& dy, const at::Tensor& x,
                            const NormStatistics& statistics, const at::Tensor& addend = {});

// Adds what norm_backward found to the norm's own gradients.
void norm_weight_grad(const NormGradients& gradients, Norm& norm);

// GELU of u (T, ffn), by tanh (gpt2) or erf (bert), or silu(gate) * up of u (T, 2 ffn) with the
// gate first.
at::Tensor activation(ModelFamily family, const at::Tensor& u);
at::Tensor activation_backward(ModelFamily family, const at::Tensor& da, const at::Tensor& u);

// One frequency for each pair of elements of a head: (head_dim / 2), fp32, in host memory. Computed
// by the same steps as in Hugging Face transformers: an angle is a position times a frequency, so a
// difference of one bit would show in the logits after a few thousand positions.
at::Tensor rotary_frequencies(const ModelShape& shape);

// Angles of the rotary embedding: (B or 1, 1, n, head_dim / 2); fp32 on a GPU, which rotates in
// fp32, else of the activations' type.
struct Rotation {
  at::Tensor cosine, sine;
};
// For positions (B or 1, n), on their device.
Rotation rotation(const at::Tensor& positions, const ModelShape& shape, const TensorKind& kind);
// Rotates x (B, heads, n, head_dim), halves paired as in HF's rotate-half; `inverse` rotates back,
// which is also the gradient.
at::Tensor rotate(const at::Tensor& x, const Rotation& rotation, bool inverse);

}  // namespace sluice
