#include "sluice/run/step_traffic.h"

#include <algorithm>
#include <iterator>

#include "sluice/cost/head_share.h"
#include "sluice/run/copies.h"
#include "sluice/run/memory.h"
#include "sluice/run/optimizer_states.h"
#include "sluice/run/sharding.h"

namespace sluice {
namespace {

// Elements that pass between tensor ranks for one slice of T tokens, in units of T dim (t - 1) / t:
// a sum is two of them, or one where the result is divided; putting something together is one.
struct Units {
  std::int64_t sum = 2, gather = 0;
};

Units units_of(const RunPlan& plan) { return plan.sequence_norms() ? Units{1, 1} : Units{2, 0}; }

// What a block's I computes again of its forward.
std::int64_t restored(const RunPlan& plan) {
  const Units unit = units_of(plan);
  std::int64_t units = 0;
  if (plan.recompute() >= RecomputeLevel::mlp) units += unit.gather;  // the up projection's input
  if (plan.recompute() >= RecomputeLevel::all_but_attention)
    units += unit.gather + unit.sum + (plan.shape.encoder() ? unit.sum : 0);
  return units;
}

std::int64_t block_units(const RunPlan& plan, OpKind kind) {
  const Units unit = units_of(plan);
  const std::int64_t products = 2 * unit.gather + 2 * unit.sum;  // attention's and the MLP's
  switch (kind) {
    case OpKind::F: return products;
    case OpKind::I: return products + restored(plan);
    // The inputs again; and, where I did not keep them, the output gradients.
    case OpKind::B: return products + restored(plan) + 2 * unit.gather;
    case OpKind::W: return 4 * unit.gather;
    default: return 0;
  }
}

// Elements that a block hands to ranks that share its sequences: q, k and v of the heads of each,
// and attention's output; in I the same of their gradients, and what is computed again.
std::int64_t exchanged(const RunPlan& plan, const TokenShare& share, OpKind kind) {
  if (share.degree == 1) return 0;
  const LocalShape local = local_shape(plan.shape, plan.mesh.tensor);
  const HeadShare heads = head_share(local, share.degree, 0);
  const std::int64_t unit = (share.degree - 1) * share.tokens;
  const std::int64_t qkv = unit * heads.columns(local.head_dim);
  const std::int64_t output = unit * heads.heads * local.head_dim;
  if (kind == OpKind::F) return qkv + output;
  if (!gives_input_gradient(kind)) return 0;
  const RecomputeLevel level = plan.recompute();
  return qkv + output + (level >= RecomputeLevel::all_but_attention ? qkv : 0) +
         (level >= RecomputeLevel::full ? output : 0);
}

std::int64_t embedding_units(const RunPlan& plan, OpKind kind) {
  const Units unit = units_of(plan);
  const std::int64_t again = plan.shape.encoder() ? unit.sum : 0;  // looked up for its norm
  switch (kind) {
    case OpKind::F: return unit.sum;
    case OpKind::I: return again;
    case OpKind::B: return again + unit.gather;
    case OpKind::W: return unit.gather;
    default: return 0;
  }
}

std::int64_t head_units(const RunPlan& plan, OpKind kind) {
  const Units unit = units_of(plan);
  if (kind == OpKind::F) return unit.gather + unit.sum;
  return gives_weight_gradient(kind) ? unit.gather : 0;
}

// Elements of a weight whose gradients tensor ranks add up: of sharded parameters the own rows.
std::int64_t added_elements(const RunPlan& plan, const ParameterShape& p, std::int64_t data_rank) {
  const std::int64_t all = p.count(plan.mesh.tensor), rows = p.rows(plan.mesh.tensor);
  if (!plan.sharded()) return all;
  const BlockRows own = share_rows(rows, data_rank % plan.mesh.shard, plan.mesh.shard);
  return (own.end - own.begin) * (all / rows);
}

// Of a stage's weights that every tensor rank holds and sees in part.
std::int64_t shared_elements(const RunPlan& plan, int stage, std::int64_t data_rank) {
  std::int64_t count = 0;
  for (const ParameterShape& p : stage_parameters(plan.shape, plan.layers_of(stage))) {
    const bool bias_of_columns = p.name.ends_with("out.bias") || p.name.ends_with("down.bias");
    if (p.divided < 0 && !bias_of_columns) count += added_elements(plan, p, data_rank);
  }
  return count;
}

// Likewise of heads of keys and values, of which there are fewer than ranks.
std::int64_t repeated_elements(const RunPlan& plan, int stage, std::int64_t data_rank) {
  std::int64_t count = 0;
  for (const ParameterShape& p : stage_parameters(plan.shape, plan.layers_of(stage)))
    if (p.divided == 0 && p.least_rows > 1) count += added_elements(plan, p, data_rank);
  return count;
}

// Gradients to the data rank that adds them up, and the sums to those that update the same rows;
// updated rows to those that did not. Of sharded parameters only replicas' gradients are left.
void add_data_traffic(const RunPlan& plan, int stage, int data_rank, Traffic& traffic) {
  const int shard = data_rank % plan.mesh.shard, replica = data_rank / plan.mesh.shard;
  const auto count = [](BlockRows rows) { return rows.end - rows.begin; };
  const auto parameters = stage_parameters(plan.shape, plan.layers_of(stage));
  const MatrixOwners owners(plan.config.optimizer, stage, parameters, plan.mesh.shard);
  for (const ParameterShape& p : parameters) {
    const std::int64_t rows = p.rows(plan.mesh.tensor), width = p.count(plan.mesh.tensor) / rows;
    const int owner = owners.owner_of(p.name);
    const std::int64_t summed =
        count(summed_rows(rows, shard, plan.mesh.shard, replica, plan.mesh.replicate, owner)) *
        width;
    const std::int64_t own = count(shard_rows(rows, shard, plan.mesh.shard, owner)) * width;
    const std::int64_t added = plan.sharded() ? own : rows * width;
    traffic.add(TrafficClass::gradient, added - summed + summed * (plan.mesh.replicate - 1));
    if (!plan.sharded()) traffic.add(TrafficClass::parameter, own * (plan.mesh.shard - 1));
  }
}

// Of the rows that the rank updates: between the devices that hold copies of a stage gradients, and
// the weights that an owner sends; and a tied head's gradient and the lookup's, where they are
// on different devices.
void add_update_traffic(const RunPlan& plan, int device, int stage, int data_rank,
                        Traffic& traffic) {
  const auto count = [](const CopyPeers& peers) { return std::ssize(peers.to); };
  const std::int64_t gradients = count(gradient_peers(plan, stage, device));
  const std::int64_t values = count(value_peers(plan, stage, device));
  const bool end = stage == 0 || stage + 1 == plan.schedule.num_stages();
  const std::int64_t tied =
      plan.shape.tied_embeddings && end ? count(tied_peers(plan, stage, device)) : 0;
  const auto parameters = stage_parameters(plan.shape, plan.layers_of(stage));
  const MatrixOwners owners(plan.config.optimizer, stage, parameters, plan.mesh.shard);
  const bool updates = updates_stage(plan, stage, device);
  for (const ParameterShape& p : parameters) {
    const std::int64_t rows = p.rows(plan.mesh.tensor), width = p.count(plan.mesh.tensor) / rows;
    const BlockRows own =
        shard_rows(rows, data_rank % plan.mesh.shard, plan.mesh.shard, owners.owner_of(p.name));
    const std::int64_t elements = (own.end - own.begin) * width;
    // Muon's matrices are put together.
    if (updates && by_muon(plan.config.optimizer, p))
      traffic.add(TrafficClass::optimizer, elements * (plan.mesh.tensor - 1));
    traffic.add(TrafficClass::gradient, gradients * elements);
    traffic.add(TrafficClass::parameter, values * elements);
    if (p.name == (stage == 0 ? "embedding.weight" : "head.weight"))
      traffic.add(TrafficClass::embedding, tied * elements);
  }
}

// Where steps overlap, the one that repeats.
Program step_program(const RunPlan& plan, int device) {
  if (!plan.endless) return plan.schedule.programs[static_cast<std::size_t>(device)];
  const EndlessSchedule& endless = *plan.endless;
  return endless.part(device, endless.head(), endless.head() + endless.ahead() + 1);
}

}  // namespace

Traffic step_traffic(const RunPlan& plan, int device, int data_rank) {
  Traffic traffic = plan.sharded() ? sharded_traffic(plan, device, data_rank) : Traffic();
  const std::int64_t t = plan.mesh.tensor;
  for (const Op& op : step_program(plan, device)) {
    if (!has_microbatch(op.kind)) continue;
    const TokenShare share = plan.share(op.microbatch, op.slice);
    const std::int64_t tokens = share.tokens;
    const std::int64_t unit = tokens * plan.shape.dim * (t - 1) / t;
    if (is_send(op.kind)) {
      traffic.add(TrafficClass::boundary, boundary_bytes(plan, tokens) / plan.element_bytes());
    } else if (is_recv(op.kind)) {
      if (plan.scatter() && !plan.sequence_norms())
        traffic.add(TrafficClass::boundary_gather, unit);
    } else {
      const StageLayers layers = plan.layers_of(op.stage);
      traffic.add(TrafficClass::tensor_layer,
                  (layers.end - layers.first) * block_units(plan, op.kind) * unit);
      traffic.add(TrafficClass::sequence,
                  (layers.end - layers.first) * exchanged(plan, share, op.kind));
      if (layers.embedding)
        traffic.add(TrafficClass::embedding, embedding_units(plan, op.kind) * unit);
      if (layers.head) {
        traffic.add(TrafficClass::loss, head_units(plan, op.kind) * unit);
        // Of each token: a log-sum-exp and the target's logit.
        if (op.kind == OpKind::F) traffic.add(TrafficClass::loss, 2 * tokens * (t - 1));
      }
    }
  }
  const std::vector<int> stages = plan.stages_of(device);
  for (const int stage : stages) {
    if (plan.sequence_norms())
      traffic.add(TrafficClass::norm, (t - 1) * shared_elements(plan, stage, data_rank));
    add_data_traffic(plan, stage, data_rank, traffic);
    add_update_traffic(plan, device, stage, data_rank, traffic);
    if (t > plan.shape.kv_heads)
      traffic.add(TrafficClass::norm,
                  (t / plan.shape.kv_heads - 1) * repeated_elements(plan, stage, data_rank));
  }
  return traffic;
}

double all_to_all_bytes_per_token(const RunPlan& plan) {
  // Queries, keys, values and output in F, their gradients in I, and what I computes again.
  const LocalShape local = local_shape(plan.shape, plan.mesh.tensor);
  const RecomputeLevel level = plan.recompute();
  const std::int64_t qkv = local.qkv_dim(), output = local.q_dim();
  const std::int64_t columns = 2 * (qkv + output) +
                               (level >= RecomputeLevel::all_but_attention ? qkv : 0) +
                               (level >= RecomputeLevel::full ? output : 0);
  const std::vector<std::int64_t> layers = device_layers(plan);
  return static_cast<double>(*std::max_element(layers.begin(), layers.end()) * columns *
                             plan.element_bytes());
}

std::vector<std::int64_t> device_layers(const RunPlan& plan) {
  std::vector<std::int64_t> layers;
  for (int device = 0; device < plan.schedule.num_devices(); ++device) {
    std::int64_t& own = layers.emplace_back(0);
    for (const int stage : plan.stages_of(device))
      own += plan.layers_per_stage[static_cast<std::size_t>(stage)];
  }
  return layers;
}

}  // namespace sluice
