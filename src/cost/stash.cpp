#include "cost/stash.h"

namespace sluice {
namespace {

constexpr std::int64_t kFloat = 4;  // statistics are fp32

// Mean and reciprocal deviation, or the latter alone.
std::int64_t norm_statistics(const ModelShape& shape) {
  return shape.family == ModelFamily::gpt2 ? 2 * kFloat : kFloat;
}

// Gradients of a norm's own weights, computed in I and added in W.
std::int64_t norm_gradients(const ModelShape& shape) {
  return (shape.family == ModelFamily::gpt2 ? 2 : 1) * shape.dim * kFloat;
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
  if (level <= RecomputeLevel::elementwise) token += s.up_dim() * e;
  if (level <= RecomputeLevel::none)
    token += 2 * s.dim * e + s.ffn_dim * e + 2 * norm_statistics(s);  // both norms, the product
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
  return bytes;
}

StashBytes head_stash(const StashQuery& q) {
  const ModelShape& s = q.shape;
  // F: the norm's output and its gradient, log-sum-exp and targets, and the gradient of the input
  // with the norm's weights', since the loss is at hand. I hands the input's gradient on.
  const std::int64_t kept = q.tokens * (s.dim * q.element_bytes + kFloat + 8) + norm_gradients(s);
  StashBytes bytes;
  bytes.after_f = kept + q.tokens * s.dim * q.element_bytes;
  bytes.after_i = kept;
  return bytes;
}

std::int64_t key_value_gradient_bytes(const ModelShape& shape, std::int64_t tokens) {
  return 2 * shape.kv_dim() * kFloat * tokens;
}

}  // namespace sluice
