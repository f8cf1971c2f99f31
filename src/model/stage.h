// A stage, or this tensor rank's share of it: a run of consecutive layers, with the embedding
// before the first layer and the head after the last one if the stage has them. It works on one
// slice of one microbatch at a time and keeps their stashes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "sluice/model/attention_packed.h"
#include "sluice/model/ends.h"
#include "sluice/model/layer.h"
#include "sluice/model/sharding.h"

namespace sluice {

// The data of one microbatch: B sequences of `length` tokens. Microbatches of a step may differ in
// both. One without tokens is not computed: empty tensors pass between the stages. Where ranks
// share it, there is one row of documents of which each rank has an equal part, in rank order.
struct Microbatch {
  at::Tensor tokens;   // (B, length), 64-bit
  at::Tensor targets;  // (B, length), -1: no loss
  Documents documents;
  SliceBounds bounds;            // where the sequences are cut into slices; empty: nowhere
  TensorGroup* group = nullptr;  // the ranks that share it; null: this one alone

  // The same, {0, length} for whole sequences.
  SliceBounds slice_bounds() const {
    return bounds.empty() ? SliceBounds{0, tokens.size(1)} : bounds;
  }
};

// What a rank computes with, beside the plan.
struct Machine {
  at::Device device = at::kCPU;
  LayerFactory make_layer = make_block;
  // On a GPU, packed documents of at least this many tokens are computed one by one; 0: none is.
  std::int64_t long_document = kLongDocument;
};

class Stage {
 public:
  // The plan outlives it. With `shards` a rank keeps its own rows of every weight, and all of them
  // run the same ops in the same order, also of microbatches without tokens. Throws UserError for
  // layers that cannot be sharded.
  Stage(const RunPlan& plan, int number, const Machine& machine = {},
        const TensorParallel& tensor = {}, const ShardRanks& shards = {});

  // Every token's loss is multiplied by `loss_scale`. REQUIRES: no microbatch is open.
  void begin_step(double loss_scale);
  // Where microbatches of several steps are open at a time, each step is a window with a loss of
  // its own: ops belong to the one that is used.
  void begin_window(std::int64_t window, double loss_scale);
  void use_window(std::int64_t window) { window_ = &windows_.at(window); }
  void end_window(std::int64_t window);
  // Forgets the microbatches that are open, and all they kept.
  void drop_microbatches();

  // Input (T, dim), undefined if the stage has the embedding -> output (T, dim). A stage with the
  // head adds the loss to loss() and returns the gradient for input_grad instead. With
  // sequence-parallel norms, T is this tensor rank's share of the tokens (own_tokens). Throws
  // UserError for an encoder with several slices. REQUIRES earlier slices' forward.
  at::Tensor forward(int microbatch, int slice, const Microbatch& data, const at::Tensor& input);
  // Gradient of the output (with the head: what forward() returned) -> gradient of the input (with
  // the embedding: undefined). REQUIRES later slices' input_grad.
  at::Tensor input_grad(int microbatch, int slice, at::Tensor d_output);
  // Adds to the gradients; frees the stash.
  void weight_grad(int microbatch, int slice);
  // input_grad and weight_grad, layer by layer.
  at::Tensor backward(int microbatch, int slice, at::Tensor d_output);

  // The same forward for evaluation: keeps keys and values for later slices and nothing else, and
  // forgets the microbatch after its last slice.
  at::Tensor evaluate(int microbatch, int slice, const Microbatch& data, const at::Tensor& input);

  // Waits for the GPU, where there is one.
  double loss() const { return window_->loss.value(); }
  // Bytes in stashes now: element size times number of elements, each storage once.
  std::int64_t stash_bytes() const;

  // Begins to gather the weights that an op of this kind, which comes next, uses first. Does not
  // block.
  void begin_gather(OpKind kind);
  // Begins to gather all weights and keeps them until reshard(): ops in between gather and drop
  // none. Without shards both do nothing.
  void unshard();
  void reshard();

  // In canonical order: embedding, layers ascending, head. Sharded ones have memory only while an
  // op uses them; kept() is what this rank always has of them.
  std::vector<Parameter*> parameters();
  std::vector<KeptParameter> kept();
  void zero_gradients();

 private:
  struct State {
    std::vector<std::unique_ptr<LayerState>> layers;
    std::vector<at::Tensor> tokens;  // (B, n) per slice, of the batch: the embedding's input
    std::vector<Head::Stash> head;
    std::vector<SliceContext> contexts;
    int slices_left = 0;
    bool empty = false;  // without tokens: there is nothing to do
  };

  struct Working {
    const State* state;
    std::size_t slice;
    std::int64_t before;
  };

  UnitWalk walk(OpKind kind);
  void shard(std::vector<Parameter>& parameters, const ShardRanks& shards, std::string name);
  State& open(int microbatch, std::size_t slices);
  void cut_at(SliceBounds bounds);
  SliceContext context_of(const Microbatch& data, std::size_t slice);
  std::int64_t bytes_of(const State& state, std::size_t slice) const;
  void begin_op(const State& state, std::size_t slice);
  void end_op();

  const RunPlan& plan_;
  int number_;
  TensorKind kind_;
  TensorParallel tensor_;
  std::int64_t long_document_;
  std::optional<Embedding> embedding_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::optional<Head> head_;
  ShardedUnits units_;  // of these, in this order; none: nothing is sharded
  bool unsharded_ = false;
  // What depends on how a microbatch is cut, of the last one: the lengths of calls for long
  // documents and, per slice, for sequences of one document each, made when needed:
  SliceBounds bounds_;
  std::vector<std::int64_t> long_lengths_;
  std::vector<Rotation> rotations_;
  std::vector<at::Tensor> positions_;
  struct Window {
    double loss_scale = 1;
    LossSum loss;
  };
  std::map<std::int64_t, Window> windows_ = {{0, {}}};
  Window* window_ = &windows_.begin()->second;
  std::int64_t stash_bytes_ = 0;    // after the last op that ended
  std::optional<Working> working_;  // an op that has not ended, or has failed
  std::map<int, State> states_;     // by microbatch
};

}  // namespace sluice
