// One transformer block with explicit forward, input gradient and weight gradient. Decoders have
// their norms before the matmuls, an encoder after the sums:
//
//   x -> norm1 -> qkv -> attention -> out -> + -> norm2 -> up -> activation -> down -> + -> y
//   |________________________________________|  |________________________________________|
//
//   x -> qkv -> attention -> out -> + -> norm1 -> up -> activation -> down -> + -> norm2 -> y
//   |_______________________________|           |_____________________________|
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/model/functions.h"
#include "sluice/model/layer.h"

namespace sluice {

// What one F keeps (the activation memory of a block). T is all tokens of the slice, and t the
// tokens that this rank has between the matmuls. heads, up_dim and ffn_dim are this tensor rank's.
// Tensors that are not held are undefined. After F the recomputation level decides what is held;
// after I, only what W needs is held.
struct BlockStash {
  at::Tensor x;   // (t, dim) input
  at::Tensor n1;  // (t, dim) first norm's output
  NormStatistics s1;
  at::Tensor q, k, v;  // (B, heads, n, head_dim), k and v with kv_heads
  at::Tensor o;        // (T, heads * head_dim) attention output
  // Of ranks that share sequences, q, k and v, the statistics and this have all tokens of the row
  // and the rank's heads: attention's output before it is exchanged. Undefined: it is o.
  at::Tensor o_heads;
  at::Tensor lse;  // (B, heads, n)
  at::Tensor x2;   // (t, dim) sum after attention
  at::Tensor n2;   // (t, dim) second norm's output; not in an encoder, where it is y
  NormStatistics s2;
  at::Tensor u;  // (T, up_dim) up projection
  at::Tensor a;  // (T, ffn_dim) activation
  at::Tensor z;  // (t, dim) sum after the MLP; in an encoder only
  // After I, for W: the gradients of the matmuls' outputs.
  at::Tensor d_qkv, d_out, d_u, d_down;
  NormGradients norm1, norm2;  // of the norms' weights; inputs undefined

  // The bytes of all held tensors: element size times number of elements.
  std::int64_t bytes() const;
};

// A microbatch's stashes of one block, one per slice, and the gradients of keys and values that
// later slices have added so far.
struct BlockState final : LayerState {
  std::vector<BlockStash> slices;
  std::vector<at::Tensor> d_keys, d_values;  // (B, kv_heads, n_j, head_dim), fp32

  std::int64_t bytes(std::size_t slice) const override;
};

class Block final : public Layer {
 public:
  // Weights are initialised from (seed, name); names start with the layer's number.
  explicit Block(const LayerOptions& options);

  std::unique_ptr<LayerState> open(std::size_t num_slices) const override;
  at::Tensor forward(const at::Tensor& x, LayerState& state, const SliceContext& context) override;
  at::Tensor input_grad(const at::Tensor& dy, LayerState& state,
                        const SliceContext& context) override;
  void weight_grad(LayerState& state, const SliceContext& context) override;
  at::Tensor backward(const at::Tensor& dy, LayerState& state,
                      const SliceContext& context) override;
  at::Tensor evaluate(const at::Tensor& x, LayerState& state, const SliceContext& context) override;
  std::vector<Parameter>& parameters() override { return parameters_; }

 private:
  // The inputs of qkv and of up, which W needs.
  at::Tensor& qkv_input(BlockStash& stash) const { return shape_.encoder() ? stash.x : stash.n1; }
  at::Tensor& up_input(BlockStash& stash) const { return shape_.encoder() ? stash.n1 : stash.n2; }
  void attend(BlockStash& stash, BlockState& state, const SliceContext& context) const;
  at::Tensor attention_grad(const at::Tensor& d_o, BlockState& state,
                            const SliceContext& context) const;
  at::Tensor heads_grad(const at::Tensor& d_o, const at::Tensor& o, BlockState& state,
                        const SliceContext& context) const;
  at::Tensor rotated(const at::Tensor& qkv, const SliceContext& context, bool back) const;
  AttentionInput attention_input(const BlockState& state, std::size_t slice) const;
  at::Tensor gathered(const at::Tensor& x, const SliceContext& context) const;
  PendingTensor begin_gather(const at::Tensor& x, const SliceContext& context) const;
  PendingTensor begin_sum(const at::Tensor& addend) const;
  at::Tensor mlp_backward(BlockStash& stash, const at::Tensor& dy, const SliceContext& context,
                          bool fused);
  // I, or with `fused` I and W.
  at::Tensor propagate(const at::Tensor& dy, LayerState& state, const SliceContext& context,
                       bool fused);
  void restore(BlockStash& stash, BlockState& state, const SliceContext& context) const;
  void restore_mlp(BlockStash& stash, const SliceContext& context) const;
  // Whether the MLP is computed chunk by chunk over the tokens, because nothing of it is kept and
  // all of it at once would take much memory. Forward: x2 and n2 -> y. Backward: dy -> gradient of
  // n2; also adds to the gradients of the weights.
  bool mlp_in_chunks(const SliceContext& context) const;
  at::Tensor mlp_by_chunks(const BlockStash& stash, const SliceContext& context) const;
  at::Tensor mlp_backward_by_chunks(const BlockStash& stash, const at::Tensor& dy,
                                    const SliceContext& context);
  void drop(BlockStash& stash, const SliceContext& context) const;

  ModelShape shape_;
  std::int64_t layer_;
  TensorParallel tensor_;
  LocalShape local_;
  std::string label_;  // of messages between tensor ranks
  Norm norm1_, norm2_;
  Linear qkv_, out_, up_, down_;
  std::vector<Parameter> parameters_;
};

}  // namespace sluice
