#include "sluice/run/op_costs.h"

#include "sluice/run/memory.h"
#include "sluice/run/stash.h"

namespace sluice {
namespace {

// Gradients of a stage that its first data rank hands to those that add them up.
std::int64_t reduced_bytes(const RunPlan& plan, int stage) {
  std::int64_t elements = 0;
  for (const ParameterShape& p : stage_parameters(plan.shape, plan.layers_of(stage))) {
    const std::int64_t rows = p.rows(plan.mesh.tensor), width = p.count(plan.mesh.tensor) / rows;
    const BlockRows own = share_rows(rows, 0, plan.mesh.data());
    elements += (rows - (own.end - own.begin)) * width;
  }
  return elements * plan.gradient_bytes();
}

}  // namespace

Costs byte_costs(const RunPlan& plan) {
  const Schedule& schedule = plan.schedule;
  Costs all(schedule.num_stages(), schedule.num_slices);
  all.measured = true;
  all.slice_sizes = schedule.slice_sizes;
  if (plan.mesh.data() > 1)
    for (int stage = 0; stage < schedule.num_stages(); ++stage)
      all.reduce.push_back(static_cast<double>(reduced_bytes(plan, stage)));
  for (int slice = 0; slice < schedule.num_slices; ++slice) {
    const std::int64_t tokens = plan.slice_tokens(slice);
    const StashBytes block = block_stash(plan, tokens), head = head_stash(plan, tokens);
    const auto kv_gradient = static_cast<double>(key_value_gradient_bytes(plan, tokens));
    const auto sent = static_cast<double>(boundary_bytes(plan, tokens));
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      const StageLayers layers = plan.layers_of(stage);
      const auto blocks = static_cast<double>(layers.end - layers.first);
      OpCosts& costs = all.at(stage, slice);
      costs.f = costs.i = costs.w = 1;
      costs.b = 2;
      costs.after_f = blocks * static_cast<double>(block.after_f);
      costs.after_i = blocks * static_cast<double>(block.after_i);
      costs.kv_gradient = blocks * kv_gradient;
      if (!layers.head) costs.sent_forward = sent;
      if (!layers.embedding) costs.sent_backward = sent;
      if (layers.head) {
        costs.after_f += static_cast<double>(head.after_f);
        costs.after_i += static_cast<double>(head.after_i);
      }
    }
  }
  return all;
}

Costs costs_of_parts(const PartTimes& times, const RunPlan& plan) {
  Costs costs = byte_costs(plan);
  const std::vector<std::int64_t> sizes =
      slice_sizes_of(plan.schedule, plan.config.training.sequence_length);
  const OpTerms block = block_terms(plan.shape, plan.recompute());
  const WorkTerms work[] = {block.f, block.i, block.w, block.i + block.w};  // as kPartOps
  const std::vector<double> tokens = work_shares({.linear = 1}, sizes);
  for (std::size_t n = 0; n < std::size(kPartOps); ++n) {
    const auto& [part, op] = kPartOps[n];
    const std::vector<double> shares = work_shares(work[n], sizes);
    for (int stage = 0; stage < plan.schedule.num_stages(); ++stage) {
      const StageLayers layers = plan.layers_of(stage);
      for (std::size_t c = 0; c < sizes.size(); ++c) {
        const Parts parts = {times.layer.*part * shares[c], times.embedding.*part * tokens[c],
                             times.head.*part * tokens[c]};
        costs.at(stage, static_cast<int>(c)).*op = parts.of(layers);
      }
    }
  }
  return costs;
}

}  // namespace sluice
