#include "sluice/run/workspace.h"

#include <algorithm>
#include <map>

#include "sluice/cost/head_share.h"
#include "sluice/run/optimizer_states.h"
#include "sluice/run/stash.h"
#include "sluice/run/workspace_gpu.h"

namespace sluice {
namespace {

constexpr std::int64_t kFloat = 4;

// Inside the backward of a norm, per token and with its result: RMS norm's of narrow types is made
// of fp32 steps.
std::int64_t norm_backward(const ModelShape& shape, std::int64_t element_bytes) {
  const bool steps = shape.family == ModelFamily::llama && element_bytes < kFloat;
  return shape.dim * (element_bytes + (steps ? 7 * kFloat : 0));
}

OpWorkspace block_workspace_cpu(const RunPlan& plan, const TokenShare& share) {
  const std::int64_t tokens = share.tokens;
  const ModelShape& s = plan.shape;
  const LocalShape local = local_shape(s, plan.mesh.tensor);
  const std::int64_t e = plan.element_bytes();
  const bool llama = s.family == ModelFamily::llama;
  const bool narrow = e < kFloat;
  // Everything that the forward computes.
  const std::int64_t whole = block_stash(plan, share, RecomputeLevel::none).after_f;
  const StashBytes kept = block_stash(plan, share);
  // Tensor ranks exchange: a product's input or output of all tokens, and the parts of a sum.
  const std::int64_t shared =
      plan.mesh.tensor > 1 ? (tokens + plan.own_tokens(tokens)) * s.dim * e : 0;
  OpWorkspace bytes;
  // What the level does not keep, and a decoder's MLP output before it is added.
  bytes.f = whole - kept.after_f + (s.encoder() ? 0 : s.dim * e * plan.own_tokens(tokens)) + shared;
  // The forward once more, and then the largest of four moments. In the activation's backward:
  const std::int64_t activation = (local.ffn_dim * (llama ? 2 : 1) + local.up_columns) * e;
  // From then on there are the gradients of the up projection and of the sum after attention. In
  // attention, besides: its output and the gradient of that, by heads and as they came, the
  // gradients of q, k and v and the parts they are added up from; and keys and values for each head
  // that shares them, or later one narrow part made wide;
  const std::int64_t always = local.up_columns * e;
  const std::int64_t q_dim = local.q_dim();
  const std::int64_t copies =
      std::max(local.kv_dim() < q_dim ? 2 * q_dim * e : 0, narrow ? q_dim * kFloat : 0);
  const std::int64_t attention =
      always + 3 * q_dim * e + (q_dim + 2 * local.kv_dim()) * kFloat + 3 * q_dim * e + copies;
  // when they are joined;
  const std::int64_t joining = always + 2 * q_dim * e + 3 * local.qkv_dim() * e;
  // and in the first norm's backward.
  const std::int64_t norming = always + local.qkv_dim() * e;
  const std::int64_t own_norming = (s.dim * e + norm_backward(s, e)) * plan.own_tokens(tokens);
  const std::int64_t between = s.dim * e * plan.own_tokens(tokens);
  bytes.i = whole + shared +
            std::max({activation * tokens, std::max(attention, joining) * tokens + between,
                      norming * tokens + own_norming + between}) -
            std::max(kept.after_f, kept.after_i);
  // Products of narrow types are made in fp32.
  if (narrow) bytes.w = (local.up_columns + s.dim) * kFloat * tokens;
  // A narrow gradient is made wide while a product is added: the largest, up or down.
  if (plan.gradient_bytes() < kFloat)
    bytes.w += std::max(local.up_columns, local.qkv_dim()) * s.dim * kFloat;
  // Inputs and output gradients of four products, put together.
  if (plan.sequence_norms()) bytes.w += 4 * s.dim * e * tokens;
  return bytes;
}

}  // namespace

OpWorkspace block_workspace(const RunPlan& plan, const TokenShare& share) {
  OpWorkspace bytes =
      plan.on_gpu() ? block_workspace_gpu(plan, share.tokens) : block_workspace_cpu(plan, share);
  if (share.degree == 1) return bytes;
  // Heads for tokens: what goes to the others, and what comes from them.
  const LocalShape local = local_shape(plan.shape, plan.mesh.tensor);
  const std::int64_t columns =
      share.degree * head_share(local, share.degree, 0).columns(local.head_dim);
  const std::int64_t exchanged = 2 * columns * plan.element_bytes() * share.tokens;
  bytes.f += exchanged;
  bytes.i += exchanged;
  return bytes;
}

OpWorkspace embedding_workspace(const RunPlan& plan, std::int64_t tokens) {
  if (plan.on_gpu()) return embedding_workspace_gpu(plan);
  const std::int64_t unit = tokens * plan.shape.dim;
  OpWorkspace bytes;
  if (plan.shape.has_biases()) bytes.f = unit * plan.element_bytes();  // positions
  // The distinct words, or positions: at most as many as there are.
  const std::int64_t distinct =
      std::min(tokens, std::max(plan.shape.vocab_size / plan.mesh.tensor, plan.shape.positions));
  bytes.i = distinct * plan.shape.dim * kFloat;
  if (plan.element_bytes() < kFloat) bytes.i += unit * kFloat;
  if (plan.gradient_bytes() < kFloat)
    bytes.i += distinct * plan.shape.dim * (kFloat + plan.gradient_bytes());
  if (plan.sequence_norms()) bytes.i += unit * plan.element_bytes();  // the gradient put together
  // Through the norm, whose input is looked up again.
  if (plan.shape.encoder())
    bytes.i = std::max(2 * unit * plan.element_bytes(), bytes.i + unit * plan.element_bytes());
  if (plan.mesh.tensor > 1)
    bytes.f += 2 * unit * plan.element_bytes();  // the lookup, and the parts of its sum
  return bytes;
}

OpWorkspace head_workspace(const RunPlan& plan, std::int64_t tokens) {
  if (plan.head_in_forward()) return head_workspace_gpu(plan, tokens);
  const ModelShape& s = plan.shape;
  const std::int64_t e = plan.element_bytes();
  const bool narrow = e < kFloat;
  const std::int64_t words = s.vocab_size / plan.mesh.tensor;
  const std::int64_t chunk = std::min(tokens, head_chunk(words, plan.on_gpu()));
  const std::int64_t logits = 2 * chunk * words * kFloat;  // with their gradient
  const std::int64_t wide = narrow ? chunk * s.dim * kFloat : 0;
  const std::int64_t product = logits + (narrow ? chunk * words * e : 0) + chunk * s.dim * e + wide;
  OpWorkspace bytes;
  const std::int64_t unit = tokens * s.dim;
  const std::int64_t backward = s.encoder() ? 3 * unit * e : tokens * norm_backward(s, e);
  bytes.f = unit * e + std::max(product, backward);
  bytes.w = std::max(logits + wide, s.encoder() && narrow ? 2 * unit * kFloat : 0);
  if (plan.gradient_bytes() < kFloat) bytes.w += words * s.dim * kFloat;
  if (plan.mesh.tensor > 1) bytes.f += unit * e;   // the gradient's parts
  if (plan.sequence_norms()) bytes.f += unit * e;  // the input put together
  if (plan.sequence_norms()) bytes.w += unit * e;
  return bytes;
}

namespace {

// Muon's matrices: the momentum of a batch of one shape put together, then the iteration's tensors.
std::int64_t muon_workspace(const RunPlan& plan, int stage) {
  const OptimizerConfig& optimizer = plan.config.optimizer;
  const std::int64_t e = optimizer.muon_dtype == IterationType::bfloat16 ? 2 : kFloat;
  std::map<std::vector<std::int64_t>, std::int64_t> shapes;
  for (const ParameterShape& parameter : stage_parameters(plan.shape, plan.layers_of(stage)))
    if (by_muon(optimizer, parameter)) ++shapes[parameter.shape];
  std::int64_t most = 0;
  for (const auto& [shape, count] : shapes) {
    const std::int64_t batch = plan.on_gpu() ? std::min(count, muon_batch(shape[0], shape[1])) : 1;
    const std::int64_t whole = batch * shape[0] * shape[1];
    const std::int64_t side = batch * std::min(shape[0], shape[1]);
    const std::int64_t square = side * std::min(shape[0], shape[1]);
    const std::int64_t gathered = plan.mesh.tensor > 1 ? 2 * whole * kFloat : 0;
    most = std::max(
        {most, 3 * whole * kFloat + gathered, whole * kFloat + 3 * whole * e + 3 * square * e});
  }
  return most;
}

}  // namespace

std::int64_t workspace_bytes(const RunPlan& plan, std::span<const int> stages) {
  std::int64_t most = 0;
  for (const int stage : stages) {
    most = std::max(most, muon_workspace(plan, stage));
    const StageLayers layers = plan.layers_of(stage);
    for (int slice = 0; slice < plan.schedule.num_slices; ++slice) {
      const TokenShare share = plan.largest_share(slice);
      const std::int64_t tokens = share.tokens;
      for (const auto& [has, part] :
           {std::pair{layers.embedding, embedding_workspace(plan, tokens)},
            std::pair{layers.end > layers.first, block_workspace(plan, share)},
            std::pair{layers.head, head_workspace(plan, tokens)}})
        if (has) most = std::max({most, part.f, part.i, part.w});
    }
  }
  return most;
}

}  // namespace sluice
