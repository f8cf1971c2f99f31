#include "sluice/run/stash.h"

#include "sluice/cost/head_share.h"

namespace sluice {
namespace {

constexpr std::int64_t kFloat = 4;  // statistics are fp32

// Mean and reciprocal deviation, or the latter alone.
std::int64_t norm_statistics(const ModelShape& shape) {
  return shape.has_biases() ? 2 * kFloat : kFloat;
}

// Gradients of a norm's own weights, computed in I and added in W.
std::int64_t norm_gradients(const ModelShape& shape) {
  return (shape.has_biases() ? 2 : 1) * shape.dim * kFloat;
}

}  // namespace

StashBytes block_stash(const RunPlan& plan, const TokenShare& share, RecomputeLevel level) {
  const std::int64_t tokens = share.tokens;
  const ModelShape& s = plan.shape;
  const LocalShape local = local_shape(s, plan.mesh.tensor);
  const std::int64_t e = plan.element_bytes();
  // Ranks that share sequences keep all tokens of some heads; a key head may be on several.
  const bool shared = share.degree > 1;
  const std::int64_t kv_heads =
      shared ? share.degree * std::ssize(head_share(local, share.degree, 0).kv_heads)
             : local.kv_heads;
  const std::int64_t kv = 2 * kv_heads * local.head_dim * e;
  std::int64_t own = s.dim * e;  // the block's input: of each token between the products
  std::int64_t all = 0;          // of each token inside them
  if (level <= RecomputeLevel::all_but_attention)
    // Attention output, as it comes out of attention and as it goes on, and its log-sum-exp.
    all += (shared ? 2 : 1) * local.q_dim() * e + local.heads * kFloat;
  if (level <= RecomputeLevel::mlp) {
    all += local.q_dim() * e + kv;
    own += s.dim * e;  // the sum after attention
  } else if (plan.sliced()) {
    all += kv;
  }
  // An encoder's last norm works on the sum after the MLP; redoing it would cost a product more.
  if (s.encoder() && level <= RecomputeLevel::mlp) own += s.dim * e;
  if (level <= RecomputeLevel::elementwise) all += local.up_columns * e;
  if (level <= RecomputeLevel::none) {
    // Both norms, of which an encoder's second one is the next block's input, and the product.
    own += (s.encoder() ? 1 : 2) * s.dim * e + 2 * norm_statistics(s);
    all += local.ffn_dim * e;
  }
  StashBytes bytes;
  bytes.after_f = own * plan.own_tokens(tokens) + all * tokens;
  // What the four weight gradients need: inputs and output gradients of the linear layers.
  bytes.after_i =
      4 * s.dim * e * plan.own_tokens(tokens) +
      (local.q_dim() + local.ffn_dim + local.qkv_dim() + local.up_columns) * e * tokens +
      2 * norm_gradients(s);
  return bytes;
}

StashBytes head_stash(const RunPlan& plan, std::int64_t tokens) {
  const ModelShape& s = plan.shape;
  // F: the norm's output with its log-sum-exp, and the gradients of the norm's weights, since the
  // loss is at hand. The gradient of the input is a tensor between the head and the last
  // layer, and counted where those between stages are (buffers.h). An encoder's head has a dense
  // layer before the norm: its input and output gradient stay for W.
  const std::int64_t hidden = s.dim * plan.element_bytes();
  // Where F has done the W of norm and output already, nothing of them is kept.
  const std::int64_t output = plan.head_in_forward() ? 0
                                                     : plan.own_tokens(tokens) * hidden +
                                                           tokens * kFloat + norm_gradients(s);
  const std::int64_t kept = output + (s.encoder() ? 2 : 0) * plan.own_tokens(tokens) * hidden;
  return {.after_f = kept, .after_i = kept};
}

std::int64_t key_value_gradient_bytes(const RunPlan& plan, std::int64_t tokens) {
  return 2 * local_shape(plan.shape, plan.mesh.tensor).kv_dim() * kFloat * tokens;
}

}  // namespace sluice
