#include "cost/workspace.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kHeadChunk = 256;  // tokens whose logits the head holds at a time

// Inside the backward of a norm, per token and with its result: RMS norm's is made of fp32 steps.
std::int64_t norm_backward(const ModelShape& shape, std::int64_t element_bytes) {
  if (shape.family != ModelFamily::llama) return shape.dim * element_bytes;
  return element_bytes == kFloat ? 6 * shape.dim * kFloat
                                 : shape.dim * (7 * kFloat + element_bytes);
}

}  // namespace

OpWorkspace block_workspace(const StashQuery& q) {
  const ModelShape& s = q.shape;
  const std::int64_t e = q.element_bytes;
  const bool llama = s.family == ModelFamily::llama;
  const bool narrow = e < kFloat;
  StashQuery all = q;
  all.level = RecomputeLevel::none;
  const std::int64_t whole = block_stash(all).after_f;  // everything that the forward computes
  const StashBytes kept = block_stash(q);
  OpWorkspace bytes;
  // What the level does not keep, and the MLP's output before it is added.
  bytes.f = whole - kept.after_f + s.dim * e * q.tokens;
  // The forward once more, and then the largest of three moments. In the activation's backward:
  const std::int64_t activation = (s.ffn_dim * (llama ? 5 : 1) + s.up_dim()) * e;
  // After attention: gradients of activation and up projection, of the second norm, of the sum
  // after attention, of attention's output and that by heads, of q, of k and v in fp32 and as they
  // are used, of the product that made them;
  const std::int64_t used = (narrow ? 2 : llama ? 1 : 0) * s.kv_dim() * e;
  const std::int64_t attended = (s.ffn_dim + s.up_dim() + 4 * s.dim) * e + s.dim * e +
                                2 * s.kv_dim() * kFloat + used + s.qkv_dim() * e;
  // with the parts of the last one before they are joined, or with the first norm's backward.
  const std::int64_t joined = s.qkv_dim() * e;
  const std::int64_t normed = s.dim * e + norm_backward(s, e);
  bytes.i = whole + std::max(activation, attended + std::max(joined, normed)) * q.tokens -
            std::max(kept.after_f, kept.after_i);
  // Products of narrow types are made in fp32.
  if (narrow) bytes.w = (s.up_dim() + s.dim) * kFloat * q.tokens;
  return bytes;
}

OpWorkspace embedding_workspace(const StashQuery& q) {
  const std::int64_t unit = q.tokens * q.shape.dim;
  OpWorkspace bytes;
  if (q.shape.family != ModelFamily::llama) bytes.f = unit * q.element_bytes;  // positions
  if (q.element_bytes < kFloat) bytes.w = unit * kFloat;
  return bytes;
}

OpWorkspace head_workspace(const StashQuery& q) {
  const ModelShape& s = q.shape;
  const std::int64_t e = q.element_bytes;
  const bool narrow = e < kFloat;
  const std::int64_t chunk = std::min(q.tokens, kHeadChunk);
  const std::int64_t logits = 2 * chunk * s.vocab_size * kFloat;  // with their gradient
  const std::int64_t wide = narrow ? chunk * s.dim * kFloat : 0;
  const std::int64_t product =
      logits + (narrow ? chunk * s.vocab_size * e : 0) + chunk * s.dim * e + wide;
  OpWorkspace bytes;
  bytes.f = q.tokens * s.dim * e + std::max(product, q.tokens * norm_backward(s, e));
  bytes.w = logits + wide;
  return bytes;
}

std::int64_t workspace_bytes(const StagedModel& model, const Schedule& schedule,
                             std::span<const int> stages) {
  std::int64_t most = 0;
  for (const int stage : stages) {
    const StageLayers layers = model.layers_of(stage);
    for (int slice = 0; slice < schedule.num_slices; ++slice) {
      const StashQuery query{.shape = model.shape,
                             .level = model.level,
                             .tokens = slice_tokens(model, schedule, slice),
                             .element_bytes = model.element_bytes,
                             .sliced = schedule.num_slices > 1};
      for (const auto& [has, part] : {std::pair{layers.embedding, embedding_workspace(query)},
                                      std::pair{layers.end > layers.first, block_workspace(query)},
                                      std::pair{layers.head, head_workspace(query)}})
        if (has) most = std::max({most, part.f, part.i, part.w});
    }
    // The update works through the weights one by one: the scaled gradient, AdamW's denominator.
    for (const ParameterShape& parameter : stage_parameters(model.shape, layers))
      most = std::max(most, 2 * kFloat * parameter.count());
  }
  return most;
}

}  // namespace sluice
