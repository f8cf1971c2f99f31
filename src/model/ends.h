// The two ends of a model: token embedding, and final norm with output projection and loss.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "cost/model_shape.h"
#include "model/functions.h"
#include "model/parameter.h"
#include "model/slice.h"

namespace sluice {

class Embedding {
 public:
  Embedding(const ModelShape& shape, std::uint64_t seed, at::ScalarType dtype);

  struct Stash {
    at::Tensor tokens;  // (T)
    at::Tensor d_y;     // (T, dim), after I
    std::int64_t bytes() const;
  };

  // tokens (B, n) -> (T, dim)
  at::Tensor forward(const at::Tensor& tokens, Stash& stash, const SliceContext& context) const;
  void input_grad(const at::Tensor& dy, Stash& stash) const;  // nothing lies before
  void weight_grad(Stash& stash, const SliceContext& context);

  std::vector<Parameter>& parameters() { return parameters_; }

 private:
  ModelShape shape_;
  at::Tensor table_, positions_;      // (vocab, dim), (positions, dim)
  at::Tensor d_table_, d_positions_;  // fp32
  std::vector<Parameter> parameters_;
};

// The loss is computed in F, chunk by chunk over the tokens, together with the gradient of the
// input: logits never outlive a chunk, and the stash holds hidden-size tensors only. W computes the
// logits again.
class Head {
 public:
  Head(const ModelShape& shape, std::uint64_t seed, at::ScalarType dtype);

  struct Stash {
    at::Tensor n;        // (T, dim) normalised input
    at::Tensor lse;      // (T), fp32
    at::Tensor targets;  // (T), -1: no loss
    at::Tensor d_x;      // (T, dim), until I
    NormGradients norm;  // of the norm's weights
    double scale = 0;    // of each token's loss
    std::int64_t bytes() const;
  };

  // x (T, dim), targets (B, n) -> sum over tokens of loss * scale, as a number. With `stash` null
  // only the loss is computed.
  double forward(const at::Tensor& x, const at::Tensor& targets, double scale, Stash* stash,
                 const SliceContext& context) const;
  at::Tensor input_grad(Stash& stash) const;
  void weight_grad(Stash& stash);

  // (T, dim) -> (T, vocab), for sampling.
  at::Tensor logits(const at::Tensor& x) const;

  std::vector<Parameter>& parameters() { return parameters_; }

 private:
  ModelShape shape_;
  Norm norm_;
  at::Tensor d_norm_weight_, d_norm_bias_;
  at::Tensor weight_, d_weight_;  // (vocab, dim)
  std::vector<Parameter> parameters_;
};

}  // namespace sluice
