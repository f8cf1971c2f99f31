#include "cost/stash.h"

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

StashBytes block_stash(const StashQuery& q) {
  const ModelShape& s = q.shape;
  const auto level = q.level;
  const std::int64_t e = q.element_bytes;
  const std::int64_t kv = 2 * s.kv_dim() * e;
  std::int64_t token = s.dim * e;  // the block's input
  if (level <= RecomputeLevel::all_but_attention)
    token += s.dim * e + s.heads * kFloat;  // attention output and its log-sum-exp
  if (level <= RecomputeLevel::mlp)
    token += s.dim * e + kv + s.dim * e;  // q; k and v; the sum after attention
  else if (q.sliced)
    token += kv;
  // An encoder's last norm works on the sum after the MLP; redoing it would cost a product more.
  if (s.encoder() && level <= RecomputeLevel::mlp) token += s.dim * e;
  if (level <= RecomputeLevel::elementwise) token += s.up_dim() * e;
  if (level <= RecomputeLevel::none)
    // Both norms, of which an encoder's second one is the next block's input, and the product.
    token += (s.encoder() ? 1 : 2) * s.dim * e + s.ffn_dim * e + 2 * norm_statistics(s);
  StashBytes bytes;
  bytes.after_f = token * q.tokens;
  // What the four weight gradients need: inputs and output gradients of the linear layers.
  const std::int64_t inputs = s.dim + s.dim + s.dim + s.ffn_dim;
  const std::int64_t gradients = s.qkv_dim() + s.dim + s.up_dim() + s.dim;
  bytes.after_i = (inputs + gradients) * e * q.tokens + 2 * norm_gradients(s);
  return bytes;
}

StashBytes embedding_stash(const StashQuery& q) {
  StashBytes bytes;
  bytes.after_f = q.tokens * 8;  // token numbers are 64-bit
  bytes.after_i = bytes.after_f + q.tokens * q.shape.dim * q.element_bytes;
  if (q.shape.encoder()) bytes.after_i += norm_gradients(q.shape);
  return bytes;
}

StashBytes head_stash(const StashQuery& q) {
  const ModelShape& s = q.shape;
  // F: the norm's output and its gradient, log-sum-exp and targets, and the gradient of the input
  // with the norm's weights', since the loss is at hand. I hands the input's gradient on.
  // An encoder's head has a dense layer before the norm: its input and output gradient stay for W.
  const std::int64_t hidden = s.dim * q.element_bytes;
  const std::int64_t token = (s.encoder() ? 3 : 1) * hidden + kFloat + 8;
  const std::int64_t kept = q.tokens * token + norm_gradients(s);
  StashBytes bytes;
  bytes.after_f = kept + q.tokens * hidden;
  bytes.after_i = kept;
  return bytes;
}

std::int64_t key_value_gradient_bytes(const ModelShape& shape, std::int64_t tokens) {
  return 2 * shape.kv_dim() * kFloat * tokens;
}

}  // namespace sluice
