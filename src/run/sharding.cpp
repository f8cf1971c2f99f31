#include "sluice/run/sharding.h"

#include <algorithm>
#include <map>
#include <set>

namespace sluice {
namespace {

struct UnitCount {
  std::int64_t whole = 0;  // elements
  std::int64_t own = 0;    // of the rank's rows
};

// With shard -1: the largest share of any rank.
std::vector<UnitCount> unit_counts(const RunPlan& plan, int stage, int shard) {
  std::vector<UnitCount> counts;
  for (const auto& parameters : stage_units(plan, stage)) {
    UnitCount& count = counts.emplace_back();
    for (const ParameterShape& p : parameters) {
      const std::int64_t rows = p.rows(plan.mesh.tensor), whole = p.count(plan.mesh.tensor);
      const BlockRows own = share_rows(rows, std::max(shard, 0), plan.mesh.shard);
      count.whole += whole;
      count.own += shard < 0 ? p.shard_count(plan.mesh.tensor, plan.mesh.shard)
                             : (own.end - own.begin) * (whole / rows);
    }
  }
  return counts;
}

}  // namespace

std::vector<std::vector<ParameterShape>> stage_units(const RunPlan& plan, int stage) {
  const StageLayers layers = plan.layers_of(stage);
  std::vector<std::vector<ParameterShape>> units;
  if (layers.embedding) units.push_back(stage_parameters(plan.shape, {.embedding = true}));
  for (std::int64_t layer = layers.first; layer < layers.end; ++layer)
    units.push_back(stage_parameters(plan.shape, {.first = layer, .end = layer + 1}));
  if (layers.head) units.push_back(stage_parameters(plan.shape, {.head = true}));
  return units;
}

std::vector<UnitUse> unit_uses(const RunPlan& plan, int stage, OpKind kind) {
  const StageLayers layers = plan.layers_of(stage);
  const std::size_t first = layers.embedding ? 1 : 0;
  const std::size_t head = first + static_cast<std::size_t>(layers.end - layers.first);
  const bool at_once = plan.head_in_forward(), encoder = plan.shape.encoder();
  std::vector<UnitUse> uses;
  if (kind == OpKind::F) {
    for (std::size_t unit = 0; unit < head; ++unit)
      uses.push_back({unit, true, false});
    if (layers.head) uses.push_back({head, true, at_once});
    return uses;
  }
  const bool input = gives_input_gradient(kind), weight = gives_weight_gradient(kind);
  // Where F leaves them to W, W computes the logits again; an encoder's dense layer always has W.
  if (layers.head && weight) uses.push_back({head, !at_once, !at_once || encoder});
  for (std::size_t unit = head; unit-- > first;)
    uses.push_back({unit, input, weight});
  // An encoder's embedding looks up its tokens again.
  if (layers.embedding && input) uses.push_back({0, encoder, true});
  return uses;
}

Traffic sharded_traffic(const RunPlan& plan, int device, int data_rank) {
  Traffic traffic;
  std::map<int, std::vector<UnitCount>> counts;
  for (const int stage : plan.stages_of(device))
    counts[stage] = unit_counts(plan, stage, data_rank % plan.mesh.shard);
  const auto gather = [&](const UnitCount& unit) {
    traffic.add(TrafficClass::parameter, unit.own * (plan.mesh.shard - 1));
  };
  std::set<int> held;  // stages between UNSHARD and RESHARD
  for (const Op& op : plan.schedule.programs[static_cast<std::size_t>(device)]) {
    if (op.kind == OpKind::Unshard && held.insert(op.stage).second)
      for (const UnitCount& unit : counts.at(op.stage))
        gather(unit);
    if (op.kind == OpKind::Reshard) held.erase(op.stage);
    if (!is_compute(op.kind)) continue;
    for (const UnitUse& use : unit_uses(plan, op.stage, op.kind)) {
      const UnitCount& unit = counts.at(op.stage)[use.unit];
      if (use.weights && !held.contains(op.stage)) gather(unit);
      if (use.gradients) traffic.add(TrafficClass::gradient, unit.whole - unit.own);
    }
  }
  return traffic;
}

GatheredBytes gathered_bytes(const RunPlan& plan, std::span<const int> stages) {
  GatheredBytes most;
  std::map<int, std::vector<UnitCount>> counts;
  for (const int stage : stages)
    counts[stage] = unit_counts(plan, stage, -1);
  // Of an op: a unit beside the messages that it came in. While a unit is used, less has arrived of
  // the next.
  const auto passing = [&](int stage, OpKind kind) {
    std::int64_t peak = 0;
    for (const UnitUse& use : unit_uses(plan, stage, kind))
      if (const UnitCount& unit = counts.at(stage)[use.unit]; use.weights)
        peak = std::max(peak, 2 * unit.whole - unit.own);
    return peak;
  };
  std::map<std::pair<int, OpKind>, std::int64_t> peaks;
  const bool keeps = plan.schedule.has(OpKind::Unshard);
  std::int64_t weights = 0;
  for (const int stage : stages) {
    for (const OpKind kind : {OpKind::F, OpKind::I, OpKind::W, OpKind::B}) {
      peaks[{stage, kind}] = passing(stage, kind);
      if (!keeps && plan.schedule.has(kind)) weights = std::max(weights, peaks[{stage, kind}]);
    }
    for (const UnitCount& unit : counts.at(stage)) {
      most.gradients = std::max(most.gradients, unit.whole);
      most.messages = std::max(most.messages, unit.whole + (plan.mesh.shard - 1) * unit.own);
    }
  }
  // While a stage is kept gathered, each of its units may be unpacking.
  const auto kept = [&](int stage) {
    std::int64_t whole = 0, arriving = 0;
    for (const UnitCount& unit : counts.at(stage)) {
      whole += unit.whole;
      arriving = std::max(arriving, unit.whole - unit.own);
    }
    return whole + arriving;
  };
  for (const Program& program : plan.schedule.programs) {
    if (!keeps) break;
    std::set<int> held;
    std::int64_t bytes = 0;
    for (const Op& op : program) {
      if (!counts.contains(op.stage)) continue;
      if (op.kind == OpKind::Unshard && held.insert(op.stage).second) bytes += kept(op.stage);
      if (op.kind == OpKind::Reshard && held.erase(op.stage) > 0) bytes -= kept(op.stage);
      const bool passes = is_compute(op.kind) && !held.contains(op.stage);
      weights = std::max(weights, bytes + (passes ? peaks.at({op.stage, op.kind}) : 0));
    }
  }
  most.weights = weights * plan.element_bytes();
  most.gradients *= plan.gradient_bytes();
  most.messages *= plan.gradient_bytes();
  return most;
}

}  // namespace sluice
