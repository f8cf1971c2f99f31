#include "sluice/run/workspace_gpu.h"

#include <algorithm>

namespace sluice {

OpWorkspace block_workspace_gpu(const RunPlan& plan, std::int64_t tokens) {
  const ModelShape& s = plan.shape;
  const LocalShape local = local_shape(s, plan.mesh.tensor);
  const std::int64_t e = plan.element_bytes();
  const std::int64_t unit = s.dim * e * tokens, qkv = local.qkv_dim() * e * tokens;
  const std::int64_t up = local.up_columns * e, ffn = local.ffn_dim * e;
  // What the level throws away and the backward makes again.
  const std::int64_t norms =
      plan.recompute() >= RecomputeLevel::elementwise ? unit : 0;  // each of the two
  const bool remakes_up = plan.recompute() >= RecomputeLevel::mlp, remakes_activation = norms > 0;
  const bool remakes_qkv = plan.recompute() >= RecomputeLevel::all_but_attention;
  const std::int64_t mlp_tokens = mlp_chunk(plan, tokens);
  const std::int64_t heads =
      (remakes_qkv ? qkv + unit : 0) +  // and the sum after attention
      (plan.recompute() == RecomputeLevel::full ? local.q_dim() * e * tokens : 0);
  OpWorkspace bytes;
  // The MLP, its output and their sum.
  bytes.f = heads + 2 * norms + 2 * unit +
            mlp_tokens * ((remakes_up ? up : 0) + (remakes_activation ? ffn : 0));
  // In the activation's backward, with the gradient of the output and, in chunks, that of the
  // input.
  const std::int64_t in_mlp =
      heads + 2 * norms + (mlp_tokens < tokens ? 2 : 1) * unit +
      mlp_tokens * ((remakes_up ? up : 0) + (remakes_activation ? ffn : 0) + ffn + up);
  // Where the gradients of q, k and v are joined: the MLP's part of the stash is gone by then.
  const std::int64_t freed = (remakes_qkv ? 0 : unit) + (norms > 0 ? 0 : unit) +
                             tokens * ((remakes_up ? 0 : up) + (remakes_activation ? 0 : ffn));
  const std::int64_t in_attention =
      heads - (remakes_qkv ? unit : 0) + norms + 3 * unit + 2 * qkv - freed;
  bytes.i = std::max(in_mlp, in_attention);
  return bytes;
}

OpWorkspace embedding_workspace_gpu(const RunPlan& plan) {
  OpWorkspace bytes;
  // A narrow table's gradient is made apart; a wide one is added to where it is.
  if (plan.gradient_bytes() < 4)
    bytes.i = plan.shape.vocab_size / plan.mesh.tensor * plan.shape.dim * plan.gradient_bytes();
  return bytes;
}

OpWorkspace head_workspace_gpu(const RunPlan& plan, std::int64_t tokens) {
  const std::int64_t words = plan.shape.vocab_size / plan.mesh.tensor, e = plan.element_bytes();
  const std::int64_t unit = tokens * plan.shape.dim * e;
  const std::int64_t logits = std::min(tokens, head_chunk(words, true)) * words * e;
  OpWorkspace bytes;
  bytes.f = 2 * unit + logits;  // the norm's output and its gradient
  return bytes;
}

}  // namespace sluice
