#include "sluice/model/block.h"

#include <cmath>
#include <limits>

#include "sluice/base/error.h"
#include "sluice/cost/head_share.h"
#include "sluice/cuda/functions.h"
#include "sluice/model/attention_cuda.h"
#include "sluice/model/sequence_parallel.h"
#include "sluice/run/stash.h"

namespace sluice {
namespace {

// (T, heads * head_dim) -> (B, heads, n, head_dim) and back. On a GPU both are views.
at::Tensor split_heads(const at::Tensor& x, const SliceContext& c, std::int64_t heads) {
  const at::Tensor split = x.unflatten(1, {heads, x.size(1) / heads})
                               .unflatten(0, {c.num_sequences, x.size(0) / c.num_sequences});
  return x.is_cuda() ? split.transpose(1, 2) : split.transpose(1, 2).contiguous();
}
// The same values, copied if they are part of a larger tensor.
at::Tensor alone(const at::Tensor& x) {
  const bool part = x.storage().nbytes() > x.nbytes();
  return part ? x.transpose(1, 2).contiguous().transpose(1, 2) : x;
}
at::Tensor join_heads(const at::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0) * x.size(2), x.size(1) * x.size(3)});
}

}  // namespace

std::int64_t BlockStash::bytes() const {
  std::int64_t total = 0;
  for (const at::Tensor* tensor : {&x,          &n1,
                                   &s1.mean,    &s1.rstd,
                                   &q,          &k,
                                   &v,          &o,
                                   &o_heads,    &lse,
                                   &x2,         &n2,
                                   &s2.mean,    &s2.rstd,
                                   &u,          &a,
                                   &z,          &d_qkv,
                                   &d_out,      &d_u,
                                   &d_down,     &norm1.weight,
                                   &norm1.bias, &norm2.weight,
                                   &norm2.bias})
    total += held_bytes(*tensor);
  return total;
}

std::int64_t BlockState::bytes(std::size_t slice) const {
  std::int64_t total = slices[slice].bytes();
  for (const auto* list : {&d_keys, &d_values})
    for (const at::Tensor& tensor : *list)
      total += held_bytes(tensor);
  return total;
}

Block::Block(const LayerOptions& options)
    : shape_(options.shape),
      layer_(options.layer),
      tensor_(options.tensor),
      local_(local_shape(options.shape, options.tensor.size())),
      label_(fmt::format("layer {}", options.layer)) {
  // A decoder's residual branches start smaller, so that their sum does not grow with the depth. In
  // an encoder the norms prevent that.
  const double deviation = 0.02;
  const double residual = shape_.encoder()
                              ? deviation
                              : deviation / std::sqrt(2.0 * static_cast<double>(shape_.layers));
  const std::string prefix = fmt::format("layers.{}.", layer_);
  const auto product = [&](std::vector<LinearPart> parts, double spread) {
    return make_linear(parameters_, {.parts = std::move(parts),
                                     .deviation = spread,
                                     .seed = options.seed,
                                     .kind = options.kind});
  };
  const auto norm_of = [&](const char* name) {
    return make_norm(shape_, options.kind, prefix + name, tensor_.shared({shape_.dim}, true),
                     parameters_);
  };
  const auto heads = [&](const char* name, std::int64_t count) {
    return tensor_.heads(prefix + name, count, shape_.head_dim(), shape_.dim, shape_.has_biases());
  };
  const auto rows = [&](const char* name) {
    return tensor_.rows(prefix + name, shape_.ffn_dim, shape_.dim, shape_.has_biases());
  };
  const auto columns = [&](const char* name, std::int64_t in) {
    return tensor_.columns(prefix + name, shape_.dim, in, shape_.has_biases());
  };
  norm1_ = norm_of("attention_norm");
  qkv_ = product({heads("attention.q", shape_.heads), heads("attention.k", shape_.kv_heads),
                  heads("attention.v", shape_.kv_heads)},
                 deviation);
  out_ = product({columns("attention.out", shape_.dim)}, residual);
  norm2_ = norm_of("mlp_norm");
  std::vector<LinearPart> up = {rows("mlp.up")};
  if (shape_.family == ModelFamily::llama) up.insert(up.begin(), rows("mlp.gate"));
  up_ = product(std::move(up), deviation);
  down_ = product({columns("mlp.down", shape_.ffn_dim)}, residual);
  out_.adds_bias = down_.adds_bias = tensor_.rank() == 0;
}

PendingTensor Block::begin_gather(const at::Tensor& x, const SliceContext& context) const {
  return tensor_.begin_gather(x, context.num_tokens(), TrafficClass::tensor_layer, label_);
}

at::Tensor Block::gathered(const at::Tensor& x, const SliceContext& context) const {
  return begin_gather(x, context).finish();
}

PendingTensor Block::begin_sum(const at::Tensor& addend) const {
  return tensor_.begin_sum(addend, TrafficClass::tensor_layer, label_);
}

AttentionInput Block::attention_input(const BlockState& state, std::size_t slice) const {
  AttentionInput input;
  input.q = state.slices[slice].q;
  input.both_ways = shape_.encoder();
  for (std::size_t j = 0; j <= slice; ++j) {
    SLUICE_CHECK(state.slices[j].k.defined(), "slice {} needs the keys of slice {}", slice, j);
    input.keys.push_back(state.slices[j].k);
    input.values.push_back(state.slices[j].v);
  }
  return input;
}

// Computes q, k and v, and attention unless its output is held already.
void Block::attend(BlockStash& stash, BlockState& state, const SliceContext& context) const {
  at::Tensor qkv = linear(gathered(qkv_input(stash), context), qkv_);
  const bool rotates = shape_.family == ModelFamily::llama;
  if (rotates && qkv.is_cuda())  // all heads of q and k, in place
    cuda::rotate(qkv, local_.heads + local_.kv_heads, local_.head_dim,
                 context.rotation.cosine.flatten(0, 2), context.rotation.sine.flatten(0, 2));
  LocalShape attended = local_;  // the heads that this rank attends with
  if (context.group) {
    if (rotates && !qkv.is_cuda()) qkv = rotated(qkv, context, false);
    qkv = tokens_to_heads(qkv, *context.group, local_, label_);
    const HeadShare share = head_share(local_, context.degree(), context.group->rank());
    attended.heads = share.heads;
    attended.kv_heads = std::ssize(share.kv_heads);
  }
  auto parts = qkv.split_with_sizes({attended.q_dim(), attended.kv_dim(), attended.kv_dim()}, 1);
  // Attention kernels compute the distance between two elements in 32 bits.
  if (qkv.is_cuda() && qkv.numel() > std::numeric_limits<std::int32_t>::max())
    for (at::Tensor& part : parts)
      part = part.contiguous();
  qkv = at::Tensor();
  const auto heads_of = [&](const at::Tensor& part, std::int64_t heads, bool rotated) {
    const at::Tensor x = split_heads(part, context, heads);
    return rotated && rotates && !x.is_cuda() && !context.group ? rotate(x, context.rotation, false)
                                                                : x;
  };
  stash.q = heads_of(parts[0], attended.heads, true);
  if (!stash.k.defined()) {
    stash.k = heads_of(parts[1], attended.kv_heads, true);
    stash.v = heads_of(parts[2], attended.kv_heads, false);
  }
  if (stash.o.defined()) return;
  const AttentionOutput output =
      attention(attention_input(state, context.slice), context.documents, context.row_bounds());
  stash.o = join_heads(output.out);
  stash.lse = output.lse.contiguous();
  if (!context.group) return;
  stash.o_heads = stash.o;
  stash.o = heads_to_tokens(stash.o_heads, *context.group, label_);
}

// (T, qkv_dim) with the heads of q and k turned by their positions, or back.
at::Tensor Block::rotated(const at::Tensor& qkv, const SliceContext& context, bool back) const {
  auto parts = qkv.split_with_sizes({local_.q_dim(), local_.kv_dim(), local_.kv_dim()}, 1);
  const auto turned = [&](const at::Tensor& part, std::int64_t heads) {
    return join_heads(rotate(split_heads(part, context, heads), context.rotation, back));
  };
  return at::cat({turned(parts[0], local_.heads), turned(parts[1], local_.kv_heads), parts[2]}, 1);
}

std::unique_ptr<LayerState> Block::open(std::size_t num_slices) const {
  auto state = std::make_unique<BlockState>();
  state->slices.resize(num_slices);
  return state;
}

at::Tensor Block::forward(const at::Tensor& x, LayerState& opened, const SliceContext& context) {
  auto& state = static_cast<BlockState&>(opened);
  BlockStash& stash = state.slices[context.slice];
  stash.x = x;
  restore(stash, state, context);
  at::Tensor y;
  if (mlp_in_chunks(context)) {
    y = mlp_by_chunks(stash, context);
  } else {
    restore_mlp(stash, context);
    y = shape_.encoder() ? norm(norm2_, stash.z, stash.s2)
                         : stash.x2 + begin_sum(linear(stash.a, down_)).finish();
  }
  drop(stash, context);
  const std::int64_t expected = block_stash(*context.plan, context.share()).after_f;
  SLUICE_CHECK(stash.bytes() == expected, "layer {} keeps {} bytes after F, predicted {}", layer_,
               stash.bytes(), expected);
  return y;
}

at::Tensor Block::evaluate(const at::Tensor& x, LayerState& opened, const SliceContext& context) {
  at::Tensor y = forward(x, opened, context);
  BlockStash& stash = static_cast<BlockState&>(opened).slices[context.slice];
  BlockStash kept;
  if (context.num_slices() > 1) {
    kept.k = alone(stash.k);
    kept.v = alone(stash.v);
  }
  stash = std::move(kept);
  return y;
}

// Computes whatever of the forward the stash does not hold, with the same calls as the forward.
void Block::restore(BlockStash& stash, BlockState& state, const SliceContext& context) const {
  const bool attended = stash.q.defined() && stash.o.defined();
  const bool encoder = shape_.encoder();
  if (!encoder && !stash.n1.defined()) stash.n1 = norm(norm1_, stash.x, stash.s1);
  if (!attended) attend(stash, state, context);
  const Norm& next = encoder ? norm1_ : norm2_;
  at::Tensor& normed = encoder ? stash.n1 : stash.n2;
  NormStatistics& statistics = encoder ? stash.s1 : stash.s2;
  if (!stash.x2.defined())
    normed =
        add_norm(next, stash.x, begin_sum(linear(stash.o, out_)).finish(), stash.x2, statistics);
  else if (!normed.defined())
    normed = norm(next, stash.x2, statistics);
}

// Frees what the recomputation level does not keep.
void Block::drop(BlockStash& stash, const SliceContext& context) const {
  const RecomputeLevel level = context.plan->recompute();
  if (level >= RecomputeLevel::elementwise) {
    stash.n1 = stash.n2 = stash.a = at::Tensor();
    stash.s1 = stash.s2 = {};
  }
  if (level >= RecomputeLevel::mlp) stash.u = at::Tensor();
  if (level >= RecomputeLevel::all_but_attention) {
    stash.q = stash.x2 = stash.z = at::Tensor();
    stash.k = context.num_slices() == 1 ? at::Tensor() : alone(stash.k);
    stash.v = context.num_slices() == 1 ? at::Tensor() : alone(stash.v);
  }
  if (level >= RecomputeLevel::full) stash.o = stash.o_heads = stash.lse = at::Tensor();
}

// Gradient of attention's output (T, q_dim) -> that of the qkv matmul's output (T, qkv_dim).
at::Tensor Block::attention_grad(const at::Tensor& d_o, BlockState& state,
                                 const SliceContext& context) const {
  if (!context.group) {
    const at::Tensor& o = state.slices[context.slice].o;
    return heads_grad(d_o, o, state, context);
  }
  TensorGroup& group = *context.group;
  at::Tensor d_qkv = heads_to_qkv(heads_grad(queries_to_heads(d_o, group, label_),
                                             state.slices[context.slice].o_heads, state, context),
                                  group, local_, label_);
  if (shape_.family != ModelFamily::llama) return d_qkv;
  if (!d_qkv.is_cuda()) return rotated(d_qkv, context, true);
  cuda::rotate(d_qkv, local_.heads + local_.kv_heads, local_.head_dim,
               context.rotation.cosine.flatten(0, 2), context.rotation.sine.flatten(0, 2).neg());
  return d_qkv;
}

// The same for the heads that this rank attends with: of attention's output and its gradient, both
// (tokens of the row, columns of these heads), to the gradients of their q, k and v. Where ranks
// share sequences, these are still turned by their positions.
at::Tensor Block::heads_grad(const at::Tensor& d_o, const at::Tensor& o, BlockState& state,
                             const SliceContext& context) const {
  const BlockStash& stash = state.slices[context.slice];
  const AttentionInput input = attention_input(state, context.slice);
  const std::int64_t heads = input.q.size(1);
  const AttentionOutput output = {split_heads(o, context, heads), stash.lse};
  const at::Tensor d_heads = split_heads(d_o, context, heads);
  const SliceBounds bounds = context.row_bounds();
  const bool first = state.d_keys.empty();
  if (first) {
    state.d_keys.resize(context.slice + 1);
    state.d_values.resize(context.slice + 1);
  }
  const auto angles = [&](const at::Tensor& table) {
    return table.defined() && !context.group ? table.flatten(0, 2) : at::Tensor();
  };
  const auto joined = [&](const AttentionGradients& gradients) {
    state.d_keys.resize(context.slice);
    state.d_values.resize(context.slice);
    return cuda::join_heads(gradients.own, gradients.more, angles(context.rotation.cosine),
                            angles(context.rotation.sine));
  };
  if (in_few_calls(input, context.documents))
    return joined(attention_backward_cuda(d_heads, input, output, context.documents, bounds,
                                          state.d_keys, state.d_values));
  // One document in one slice is a single piece, which gives the whole gradients.
  const bool pieces = context.num_slices() > 1 || !context.documents.single();
  for (std::size_t j = 0; first && pieces && j <= context.slice; ++j) {
    const at::Tensor& k = state.slices[j].k;
    state.d_keys[j] = at::zeros(k.sizes(), k.options().dtype(at::kFloat));
    state.d_values[j] = at::zeros(k.sizes(), k.options().dtype(at::kFloat));
  }
  at::Tensor dq = attention_backward(d_heads, input, output, context.documents, bounds,
                                     state.d_keys, state.d_values);
  at::Tensor dk = state.d_keys[context.slice], dv = state.d_values[context.slice];
  if (dq.is_cuda()) return joined({.own = {dq, dk, dv}, .more = {}});
  state.d_keys.resize(context.slice);
  state.d_values.resize(context.slice);
  dk = dk.to(d_o.scalar_type());
  dv = dv.to(d_o.scalar_type());
  if (shape_.family == ModelFamily::llama && !context.group) {
    dq = rotate(dq, context.rotation, true);
    dk = rotate(dk, context.rotation, true);
  }
  return at::cat({join_heads(dq), join_heads(dk), join_heads(dv)}, 1);
}

at::Tensor Block::propagate(const at::Tensor& dy, LayerState& opened, const SliceContext& context,
                            bool fused) {
  auto& state = static_cast<BlockState&>(opened);
  BlockStash& stash = state.slices[context.slice];
  restore(stash, state, context);

  const bool encoder = shape_.encoder();
  at::Tensor d_up_input = fused && mlp_in_chunks(context)
                              ? mlp_backward_by_chunks(stash, dy, context)
                              : mlp_backward(stash, dy, context, fused);
  if (encoder) {
    stash.norm1 = norm_backward(norm1_, stash.d_down + d_up_input, stash.x2, stash.s1);
    stash.d_out = stash.norm1.input;
  } else {
    stash.norm2 = norm_backward(norm2_, d_up_input, stash.x2, stash.s2, dy);
    stash.d_out = stash.norm2.input;
  }
  // Frees memory for attention, which takes the most.
  d_up_input = at::Tensor();
  if (fused && !encoder) stash.x2 = stash.n2 = at::Tensor();
  const at::Tensor d_out = gathered(stash.d_out, context);
  PendingTensor input = fused ? begin_gather(qkv_input(stash), context) : PendingTensor();
  stash.d_qkv = attention_grad(linear_input_grad(d_out, out_.weight), state, context);
  PendingTensor sum = begin_sum(linear_input_grad(stash.d_qkv, qkv_.weight));
  if (fused) {
    linear_weight_grad(d_out, stash.o, out_);
    linear_weight_grad(stash.d_qkv, input.finish(), qkv_);
  }
  const at::Tensor d_qkv_input = sum.finish();
  at::Tensor dx;
  if (encoder) {
    dx = stash.d_out + d_qkv_input;
  } else {
    stash.norm1 = norm_backward(norm1_, d_qkv_input, stash.x, stash.s1, stash.d_out);
    dx = std::move(stash.norm1.input);
  }
  if (fused) {
    norm_weight_grad(stash.norm1, norm1_);
    norm_weight_grad(stash.norm2, norm2_);
    stash = BlockStash();
  }
  return dx;
}

at::Tensor Block::backward(const at::Tensor& dy, LayerState& opened, const SliceContext& context) {
  return propagate(dy, opened, context, true);
}

at::Tensor Block::input_grad(const at::Tensor& dy, LayerState& opened,
                             const SliceContext& context) {
  at::Tensor dx = propagate(dy, opened, context, false);
  BlockStash& stash = static_cast<BlockState&>(opened).slices[context.slice];
  // W needs the inputs and output gradients of the matmuls, nothing else.
  if (!shape_.encoder()) stash.x = at::Tensor();
  stash.q = stash.k = stash.v = stash.lse = stash.o_heads = stash.x2 = stash.u = stash.z =
      at::Tensor();
  stash.s1 = stash.s2 = {};
  stash.norm1.input = stash.norm2.input = at::Tensor();
  const std::int64_t expected = block_stash(*context.plan, context.share()).after_i;
  SLUICE_CHECK(stash.bytes() == expected, "layer {} keeps {} bytes after I, predicted {}", layer_,
               stash.bytes(), expected);
  return dx;
}

void Block::weight_grad(LayerState& opened, const SliceContext& context) {
  BlockStash& stash = static_cast<BlockState&>(opened).slices[context.slice];
  // Other ranks' rows of a tensor arrive while the weight gradients before it are computed.
  PendingTensor d_down = begin_gather(stash.d_down, context);
  PendingTensor up_in = begin_gather(up_input(stash), context);
  PendingTensor d_out = begin_gather(stash.d_out, context);
  PendingTensor qkv_in = begin_gather(qkv_input(stash), context);
  linear_weight_grad(d_down.finish(), stash.a, down_);
  linear_weight_grad(stash.d_u, up_in.finish(), up_);
  linear_weight_grad(d_out.finish(), stash.o, out_);
  linear_weight_grad(stash.d_qkv, qkv_in.finish(), qkv_);
  norm_weight_grad(stash.norm1, norm1_);
  norm_weight_grad(stash.norm2, norm2_);
  stash = BlockStash();
}

std::unique_ptr<Layer> make_block(const LayerOptions& options) {
  return std::make_unique<Block>(options);
}

}  // namespace sluice
