#include "sluice/run/memory.h"

#include <algorithm>

#include "sluice/cost/buffers.h"
#include "sluice/run/copies.h"
#include "sluice/run/optimizer_states.h"
#include "sluice/run/sharding.h"
#include "sluice/schedule/staleness.h"

namespace sluice {

namespace {

// Elements of all versions of the weights that a device keeps at a time, at most.
std::int64_t versions_of(const RunPlan& plan, int device) {
  std::vector<std::int64_t> of_stage;
  for (int stage = 0; stage < plan.schedule.num_stages(); ++stage) {
    std::int64_t& count = of_stage.emplace_back(0);
    for (const ParameterShape& parameter : stage_parameters(plan.shape, plan.layers_of(stage)))
      count += parameter.count(plan.mesh.tensor);
  }
  return weights_held(plan.schedule, of_stage)[static_cast<std::size_t>(device)];
}

// Of what a rank updates: states; and these with the weights that have no masters.
struct UpdatedBytes {
  std::int64_t states = 0, kept = 0;
};

// Where matrices are dealt as wholes: of the rank that has most. Else of the largest share of each
// weight.
UpdatedBytes updated_bytes(const RunPlan& plan, int device) {
  const bool masters =
      plan.config.optimizer.master_weights && plan.config.training.dtype != NumberType::float32;
  UpdatedBytes divided;
  std::vector<UpdatedBytes> dealt(static_cast<std::size_t>(plan.mesh.shard));
  for (const int stage : plan.stages_of(device)) {
    if (!updates_stage(plan, stage, device)) continue;
    const std::vector<ParameterShape> parameters =
        stage_parameters(plan.shape, plan.layers_of(stage));
    const MatrixOwners owners(plan.config.optimizer, stage, parameters, plan.mesh.shard);
    for (const ParameterShape& parameter : parameters) {
      const int owner = owners.owner_of(parameter.name);
      const std::int64_t own = owner < 0 ? parameter.shard_count(plan.mesh.tensor, plan.mesh.shard)
                                         : parameter.count(plan.mesh.tensor);
      UpdatedBytes& bytes = owner < 0 ? divided : dealt[static_cast<std::size_t>(owner)];
      bytes.states += own * state_bytes(plan.config, parameter);
      bytes.kept +=
          own * (state_bytes(plan.config, parameter) + (masters ? 0 : plan.element_bytes()));
    }
  }
  const auto most = std::max_element(
      dealt.begin(), dealt.end(), [](const auto& a, const auto& b) { return a.states < b.states; });
  return {divided.states + most->states, divided.kept + most->kept};
}

}  // namespace

int accumulators_of(const RunPlan& plan, int device) {
  if (!plan.endless) return 1;
  return std::max(1, staleness_of(plan.schedule).accumulators[static_cast<std::size_t>(device)]);
}

WeightBytes weight_bytes(const RunPlan& plan, int device) {
  const std::vector<int> stages = plan.stages_of(device);
  std::int64_t count = 0, sharded = 0;
  for (const int stage : stages)
    for (const ParameterShape& parameter : stage_parameters(plan.shape, plan.layers_of(stage))) {
      count += parameter.count(plan.mesh.tensor);
      sharded += parameter.shard_count(plan.mesh.tensor, plan.mesh.shard);
    }
  const UpdatedBytes updated = updated_bytes(plan, device);
  const GatheredBytes gathered = plan.sharded() ? gathered_bytes(plan, stages) : GatheredBytes();
  const std::int64_t held = plan.sharded() ? sharded : count;
  return {.weights = (plan.endless ? versions_of(plan, device) : held) * plan.element_bytes() +
                     gathered.weights,
          .gradients =
              held * accumulators_of(plan, device) * plan.gradient_bytes() + gathered.gradients,
          .optimizer = updated.states,
          .kept = updated.kept,
          .own_gradients = held * plan.gradient_bytes(),
          .messages = gathered.messages};
}

BesideWeights beside_weights(const RunPlan& plan, const WeightBytes& held) {
  BesideWeights bytes;
  const std::int64_t replicas = plan.mesh.replicate;
  if (plan.sharded())  // of the own rows, at the end of a step; units before that
    bytes.reduction =
        std::max(held.messages, replicas > 1 ? held.own_gradients / replicas * (2 * replicas - 1)
                                             : std::int64_t{0});
  else if (const std::int64_t data = plan.mesh.data(); data > 1)
    bytes.reduction = held.own_gradients + held.own_gradients / data * (data - 1);
  if (plan.config.parallelism.deferred_validation) bytes.rollback = held.kept;
  return bytes;
}

std::int64_t boundary_bytes(const RunPlan& plan, std::int64_t tokens) {
  const bool share = plan.sequence_norms() || plan.scatter();
  return (share ? tokens / plan.mesh.tensor : tokens) * plan.shape.dim * plan.element_bytes();
}

std::vector<std::int64_t> buffer_bytes(const RunPlan& plan) {
  std::vector<std::int64_t> tensors;
  for (int microbatch = 0; microbatch < plan.schedule.num_microbatches; ++microbatch)
    for (int slice = 0; slice < plan.schedule.num_slices; ++slice)
      tensors.push_back(boundary_bytes(plan, plan.share(microbatch, slice).tokens));
  return peak_buffer_bytes(plan.schedule, tensors);
}

}  // namespace sluice
