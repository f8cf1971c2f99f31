#include "sluice/run/op_costs.h"

#include "sluice/base/error.h"
#include "sluice/run/memory.h"
#include "sluice/run/optimizer_states.h"
#include "sluice/run/stash.h"

namespace sluice {
namespace {

// Gradients of a stage that its first data rank hands to those that add them up.
std::int64_t reduced_bytes(const RunPlan& plan, int stage) {
  std::int64_t elements = 0;
  const auto parameters = stage_parameters(plan.shape, plan.layers_of(stage));
  const MatrixOwners owners(plan.config.optimizer, stage, parameters, plan.mesh.shard);
  for (const ParameterShape& p : parameters) {
    const std::int64_t rows = p.rows(plan.mesh.tensor), width = p.count(plan.mesh.tensor) / rows;
    const BlockRows own =
        summed_rows(rows, 0, plan.mesh.shard, 0, plan.mesh.replicate, owners.owner_of(p.name));
    elements += (rows - (own.end - own.begin)) * width;
  }
  return elements * plan.gradient_bytes();
}

// Each op takes one unit of time, since only its bytes count.
OpCosts bytes_of_ops(const RunPlan& plan, int stage, const TokenShare& share) {
  const std::int64_t tokens = share.tokens;
  OpCosts costs;
  costs.f = costs.i = costs.w = 1;
  costs.b = 2;
  if (tokens == 0) return costs;  // nothing is computed, so nothing is kept
  const StashBytes block = block_stash(plan, share), head = head_stash(plan, tokens);
  const StageLayers layers = plan.layers_of(stage);
  const auto blocks = static_cast<double>(layers.end - layers.first);
  costs.after_f = blocks * static_cast<double>(block.after_f);
  costs.after_i = blocks * static_cast<double>(block.after_i);
  costs.kv_gradient = blocks * static_cast<double>(key_value_gradient_bytes(plan, tokens));
  const auto sent = static_cast<double>(boundary_bytes(plan, tokens));
  if (!layers.head) costs.sent_forward = sent;
  if (!layers.embedding) costs.sent_backward = sent;
  if (layers.head) {
    costs.after_f += static_cast<double>(head.after_f);
    costs.after_i += static_cast<double>(head.after_i);
  }
  return costs;
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
  for (int slice = 0; slice < schedule.num_slices; ++slice)
    for (int stage = 0; stage < schedule.num_stages(); ++stage)
      all.at(stage, slice) = bytes_of_ops(plan, stage, plan.largest_share(slice));
  if (!plan.shares.empty()) {
    std::vector<OpCosts> table;
    for (const TokenShare& share : plan.shares)
      for (int stage = 0; stage < schedule.num_stages(); ++stage)
        table.push_back(bytes_of_ops(plan, stage, share));
    all.set_microbatches(std::move(table));
  }
  return all;
}

Costs costs_of_parts(const PartTimes& times, const RunPlan& plan) {
  SLUICE_CHECK(plan.shares.empty(), "times of {} unequal microbatches", plan.shares.size());
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
