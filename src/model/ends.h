// The two ends of a model: token embedding (in an encoder with a norm after it), and final norm (in
// an encoder after a dense layer and its activation) with output projection and loss.
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
    at::Tensor tokens;   // (T)
    at::Tensor d_y;      // (T, dim), after I: of the sum of token and position
    NormGradients norm;  // of the norm's weights
    std::int64_t bytes() const;
  };

  // tokens (B, n) -> (T, dim)
  at::Tensor forward(const at::Tensor& tokens, Stash& stash, const SliceContext& context) const;
  // Nothing lies before it, but what W adds is settled here. An encoder's embedding looks its
  // tokens up again.
  void input_grad(const at::Tensor& dy, Stash& stash, const SliceContext& context) const;
  void weight_grad(Stash& stash, const SliceContext& context);

  std::vector<Parameter>& parameters() { return parameters_; }

 private:
  at::Tensor sum(const at::Tensor& tokens, const SliceContext& context) const;

  ModelShape shape_;
  Norm norm_;                         // of an encoder
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
    at::Tensor x, d_h;   // (T, dim) input and output gradient of an encoder's dense layer
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
  at::Tensor project(const at::Tensor& n) const;

  ModelShape shape_;
  Linear dense_;  // of an encoder
  Norm norm_;
  Linear output_;  // (vocab, dim); with a bias in an encoder
  std::vector<Parameter> parameters_;
};

}  // namespace sluice
