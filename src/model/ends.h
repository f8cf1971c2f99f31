// The two ends of a model: the token embedding, and the final norm with output projection and loss.
// An encoder also has a norm after the embedding, and a dense layer with an activation before the
// final norm. T is all tokens of a slice, and t the tokens that this rank has between the matmuls.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "sluice/cost/model_shape.h"
#include "sluice/model/functions.h"
#include "sluice/model/parameter.h"
#include "sluice/model/slice.h"

namespace sluice {

// Tensor ranks divide the vocabulary.
class Embedding {
 public:
  Embedding(const ModelShape& shape, std::uint64_t seed, const TensorKind& kind,
            const TensorParallel& tensor = {});

  // tokens (B, n) -> (T, dim). Keeps nothing: the tokens are there for the whole step.
  at::Tensor forward(const at::Tensor& tokens, const SliceContext& context) const;
  // Adds to the gradients, already in I: no earlier stage waits for it, and dy need not be kept. An
  // encoder's embedding looks up its tokens again.
  void backward(const at::Tensor& dy, const at::Tensor& tokens, const SliceContext& context);

  std::vector<Parameter>& parameters() { return parameters_; }

 private:
  at::Tensor sum(const at::Tensor& tokens, const SliceContext& context) const;

  at::Tensor lookup(const at::Tensor& tokens) const;

  ModelShape shape_;
  TensorParallel tensor_;
  RowRange words_;                    // of the vocabulary, held here
  Norm norm_;                         // of an encoder
  at::Tensor table_, positions_;      // (words, dim), (positions, dim)
  at::Tensor d_table_, d_positions_;  // fp32
  std::vector<Parameter> parameters_;
};

// The losses of a step, each times the step's scale.
struct LossSum {
  double known = 0;
  at::Tensor
      computing;  // (1), fp64, without the scale: what a GPU adds up; undefined where none does
  double scale = 1;
  // Waits for the GPU.
  double value() const {
    return known + (computing.defined() ? scale * computing.item<double>() : 0);
  }
};

// The loss is computed in F, chunk by chunk over the tokens, together with the gradient of the
// input: logits never outlive a chunk, and the stash holds hidden-size tensors only. W computes the
// logits again, or, with `weights_in_forward`, F adds to the gradients of norm and projection at
// once. Tensor ranks divide the vocabulary: no rank ever holds all logits of a token.
class Head {
 public:
  // REQUIRES a GPU without other tensor ranks for weights_in_forward.
  Head(const ModelShape& shape, std::uint64_t seed, const TensorKind& kind,
       const TensorParallel& tensor = {}, bool weights_in_forward = false);

  struct Stash {
    at::Tensor n;        // (t, dim) normalised input; it and the next two only if W needs them
    at::Tensor lse;      // (T), fp32
    at::Tensor targets;  // (B, n), -1: no loss; belongs to the batch, so bytes() does not count it
    NormGradients norm;  // of the norm's weights
    at::Tensor x, d_h;   // (t, dim) input and output gradient of an encoder's dense layer
    double scale = 0;    // of each token's loss
    std::int64_t bytes() const;
  };

  // x (T, dim), targets (B, n) -> gradient of x. Adds every token's loss, times `scale`, to `loss`.
  // If `stash` is null, only the loss is computed.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& targets, double scale, Stash* stash,
                     const SliceContext& context, LossSum& loss);
  void weight_grad(Stash& stash);

  // (T, dim) -> (T, vocab), for sampling.
  at::Tensor logits(const at::Tensor& x) const;

  std::vector<Parameter>& parameters() { return parameters_; }

 private:
  at::Tensor project(const at::Tensor& n) const;
  // The targets as indices into this rank's words of the vocabulary; -1 for words of other ranks,
  // and where there is no loss.
  at::Tensor own_targets(const at::Tensor& targets) const;
  // losses and losses_and_weights compute the loss over all chunks and, if `dn` (T, dim) is
  // defined, the gradient of n. Then losses_and_weights also adds to the output projection's
  // gradients.
  void losses(const at::Tensor& n, const at::Tensor& targets, double scale, const at::Tensor& lse,
              const at::Tensor& dn, LossSum& loss) const;
  void output_weight_grad(const Stash& stash);
  void losses_and_weights(const at::Tensor& n, const at::Tensor& targets, double scale,
                          const at::Tensor& dn, LossSum& loss);

  ModelShape shape_;
  TensorParallel tensor_;
  RowRange words_;
  bool weights_in_forward_;
  Linear dense_;  // of an encoder
  Norm norm_;
  Linear output_;  // (words, dim); with a bias in an encoder
  std::vector<Parameter> parameters_;
};

}  // namespace sluice
