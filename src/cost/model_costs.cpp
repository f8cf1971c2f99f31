#include "cost/model_costs.h"

#include <numeric>

#include "cost/flops.h"

namespace sluice {

StageLayers StagedModel::layers_of(int stage) const {
  const auto listed = layers_per_stage.begin();
  StageLayers layers;
  layers.first = std::accumulate(listed, listed + stage, std::int64_t{0});
  layers.end = layers.first + listed[stage];
  layers.embedding = stage == 0;
  layers.head = stage + 1 == static_cast<int>(layers_per_stage.size());
  return layers;
}

WeightBytes weight_bytes(const StagedModel& model, std::span<const int> stages) {
  constexpr std::int64_t kFloat = 4;
  std::int64_t count = 0, sharded = 0;
  for (const int stage : stages)
    for (const ParameterShape& parameter : stage_parameters(model.shape, model.layers_of(stage))) {
      count += parameter.count(model.tensor);
      sharded += parameter.shard_count(model.tensor, model.shard);
    }
  const bool masters = model.masters && model.element_bytes < kFloat;
  const std::int64_t moments = model.moments * model.moment_bytes;
  return {.weights = count * model.element_bytes,
          .gradients = count * model.gradient_bytes,
          .optimizer = sharded * (moments + (masters ? kFloat : 0)),
          .kept = sharded * (moments + (masters ? kFloat : model.element_bytes))};
}

std::int64_t slice_tokens(const StagedModel& model, const Schedule& schedule, int slice) {
  const std::int64_t c = slice, k = schedule.num_slices, length = model.sequence_length;
  return model.sequences * (schedule.slice_sizes.empty()
                                ? length * (c + 1) / k - length * c / k
                                : schedule.slice_sizes[static_cast<std::size_t>(slice)]);
}

StashQuery query_of(const StagedModel& model, const Schedule& schedule, int slice) {
  return {.shape = model.shape,
          .level = model.level,
          .tokens = slice_tokens(model, schedule, slice),
          .element_bytes = model.element_bytes,
          .gradient_bytes = model.gradient_bytes,
          .sliced = schedule.num_slices > 1,
          .tensor = model.tensor,
          .sequence_norms = model.sequence_norms,
          .gpu = model.gpu,
          .head_in_forward = model.head_in_forward};
}

std::int64_t boundary_bytes(const StagedModel& model, std::int64_t tokens) {
  const bool share = model.sequence_norms || model.scatter;
  return (share ? tokens / model.tensor : tokens) * model.shape.dim * model.element_bytes;
}

namespace {

// Gradients of a stage that its first data rank hands to those that add them up.
std::int64_t reduced_bytes(const StagedModel& model, int stage) {
  std::int64_t elements = 0;
  for (const ParameterShape& p : stage_parameters(model.shape, model.layers_of(stage))) {
    const std::int64_t rows = p.rows(model.tensor), width = p.count(model.tensor) / rows;
    const BlockRows own = share_rows(rows, 0, model.shard * model.replicate);
    elements += (rows - (own.end - own.begin)) * width;
  }
  return elements * model.gradient_bytes;
}

}  // namespace

Costs byte_costs(const StagedModel& model, const Schedule& schedule) {
  Costs all(schedule.num_stages(), schedule.num_slices);
  all.measured = true;
  if (model.shard * model.replicate > 1)
    for (int stage = 0; stage < schedule.num_stages(); ++stage)
      all.reduce.push_back(static_cast<double>(reduced_bytes(model, stage)));
  for (int stage = 0; stage < schedule.num_stages(); ++stage)
    for (int slice = 0; slice < schedule.num_slices; ++slice) {
      const StashQuery query = query_of(model, schedule, slice);
      const StageLayers layers = model.layers_of(stage);
      const auto blocks = static_cast<double>(layers.end - layers.first);
      const StashBytes block = block_stash(query);
      OpCosts& costs = all.at(stage, slice);
      costs.f = costs.i = costs.w = 1;
      costs.b = 2;
      costs.after_f = blocks * static_cast<double>(block.after_f);
      costs.after_i = blocks * static_cast<double>(block.after_i);
      costs.kv_gradient = blocks * static_cast<double>(key_value_gradient_bytes(query));
      const auto sent = static_cast<double>(boundary_bytes(model, query.tokens));
      if (!layers.head) costs.sent_forward = sent;
      if (!layers.embedding) costs.sent_backward = sent;
      if (layers.head) {
        const StashBytes head = head_stash(query);
        costs.after_f += static_cast<double>(head.after_f);
        costs.after_i += static_cast<double>(head.after_i);
      }
    }
  return all;
}

double block_work(const ModelShape& s, RecomputeLevel level, std::int64_t length) {
  const LayerFlops forward = layer_flops(s, static_cast<double>(length));
  // Attention's forward pass has two matmuls; its backward pass has five, since it computes the
  // scores again.
  double work = 3 * forward.matmuls() + 3.5 * forward.attention;
  if (level >= RecomputeLevel::mlp) work += forward.up;
  if (level >= RecomputeLevel::all_but_attention)
    // An encoder's last norm comes after the down projection.
    work += forward.qkv + forward.out + (s.encoder() ? forward.down : 0);
  if (level >= RecomputeLevel::full) work += forward.attention;
  return work;
}

double head_work(const ModelShape& s) {
  // F: logits and the gradient of the input; W: the logits again, and the gradient of the weight.
  const HeadFlops forward = head_flops(s);
  return 4 * forward.logits + 3 * forward.dense;
}

}  // namespace sluice
