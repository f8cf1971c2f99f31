#include "sluice/plan/device_memory.h"

#include <algorithm>
#include <optional>
#include <set>

#include "sluice/run/memory.h"
#include "sluice/run/op_costs.h"
#include "sluice/run/step_kinds.h"
#include "sluice/run/workspace.h"
#include "sluice/sim/memory_replay.h"

namespace sluice {
namespace {

OpCosts difference(const OpCosts& one, const OpCosts& none) {
  OpCosts costs;
  costs.after_f = one.after_f - none.after_f;
  costs.after_i = one.after_i - none.after_i;
  costs.kv = one.kv - none.kv;
  costs.kv_gradient = one.kv_gradient - none.kv_gradient;
  return costs;
}

// Bytes of the ops of one stage alone, one layer of it or its ends.
Costs of_stage(const Costs& with_layer, const Costs& ends, int stage) {
  Costs out(ends.num_stages(), ends.num_slices());
  for (int slice = 0; slice < ends.num_slices(); ++slice)
    out.at(stage, slice) = difference(with_layer.at(stage, slice), ends.at(stage, slice));
  std::vector<OpCosts> table;
  for (int m = 0; m < ends.num_microbatches(); ++m)
    for (int s = 0; s < ends.num_stages(); ++s)
      table.push_back(s == stage ? difference(with_layer.of(m, s, 0), ends.of(m, s, 0))
                                 : OpCosts());
  if (!table.empty()) out.set_microbatches(std::move(table));
  return out;
}

bool dominated(const StashMoment& a, const StashMoment& by) {
  if (a.ends > by.ends) return false;
  for (std::size_t s = 0; s < a.per_layer.size(); ++s)
    if (a.per_layer[s] > by.per_layer[s]) return false;
  return a != by;
}

// The moments of a device's program that can be the largest of all, for some split.
std::vector<StashMoment> moments_of(const Schedule& schedule, std::size_t device,
                                    const std::vector<int>& stages, const Costs& one,
                                    const Costs& none) {
  std::vector<MemoryReplay> layers;
  for (const int stage : stages)
    layers.emplace_back(schedule, of_stage(one, none, stage));
  MemoryReplay ends(schedule, none);
  std::set<StashMoment> seen;
  for (const Op& op : schedule.programs[device]) {
    if (!is_compute(op.kind)) continue;
    StashMoment moment;
    for (MemoryReplay& replay : layers)
      moment.per_layer.push_back(replay.apply(device, op).at_end);
    moment.ends = ends.apply(device, op).at_end;
    seen.insert(std::move(moment));
  }
  std::vector<StashMoment> out;
  for (const StashMoment& moment : seen)
    if (std::none_of(seen.begin(), seen.end(),
                     [&](const StashMoment& other) { return dominated(moment, other); }))
      out.push_back(moment);
  return out;
}

}  // namespace

std::vector<DeviceMemory> memory_of_devices(RunPlan plan) {
  std::optional<RunPlan> validation = validation_of_planned(plan);
  take_largest_shares(plan);
  std::vector<std::int64_t> buffers = buffer_bytes(plan);
  if (validation) {
    const std::vector<std::int64_t> theirs = buffer_bytes(*validation);
    for (std::size_t d = 0; d < buffers.size(); ++d)
      buffers[d] = std::max(buffers[d], theirs[d]);
  }
  const auto num_stages = static_cast<std::size_t>(plan.schedule.num_stages());
  const auto held = [](const RunPlan& run, int device) {
    const WeightBytes bytes = weight_bytes(run, device);
    const BesideWeights beside = beside_weights(run, bytes);
    return static_cast<double>(bytes.total() + beside.reduction + beside.rollback);
  };
  plan.layers_per_stage.assign(num_stages, 0);
  RunPlan with_layers = plan, with_more = plan;
  with_layers.layers_per_stage.assign(num_stages, 1);
  with_more.layers_per_stage.assign(num_stages, 2);
  if (validation) validation->layers_per_stage = with_layers.layers_per_stage;
  const Costs none = byte_costs(plan), one = byte_costs(with_layers);
  std::vector<DeviceMemory> out;
  for (std::size_t d = 0; d < plan.schedule.programs.size(); ++d) {
    const auto device = static_cast<int>(d);
    const std::vector<int> stages = plan.stages_of(device);
    DeviceMemory& memory = out.emplace_back();
    // From the second layer on each takes as much. Sharded ones need room for the first that is
    // gathered.
    const double first = held(with_layers, device), more = held(with_more, device) - first;
    memory.fixed =
        first - more +
        static_cast<double>(buffers[d] + std::max(workspace_bytes(with_layers, stages),
                                                  validation ? workspace_bytes(*validation, stages)
                                                             : std::int64_t{0}));
    if (!stages.empty()) memory.per_layer = more / static_cast<double>(stages.size());
    memory.moments = moments_of(plan.schedule, d, stages, one, none);
  }
  return out;
}

}  // namespace sluice
