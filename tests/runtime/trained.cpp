#include "runtime/trained.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "sluice/comm/threads/threads.h"
#include "sluice/run/op_costs.h"
#include "sluice/run/step_traffic.h"
#include "sluice/runtime/files/sha256.h"
#include "sluice/runtime/rank_device.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/transforms/reductions.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"
#include "support/plans.h"

namespace sluice::test {
namespace {

// What a rank holds of a tensor, of it the rows `own`, into its place of the whole one.
void put_together(const Parameter& parameter, const std::string& name, const at::Tensor& tensor,
                  const RowRange& own, std::map<std::string, at::Tensor>& wholes) {
  const at::Tensor held = tensor.cpu();
  const Shard& shard = parameter.shard;
  at::Tensor& whole = wholes[name];
  if (!whole.defined())
    whole =
        at::full(held.dim() > 0 ? shard.whole : std::vector<std::int64_t>{}, NAN, held.options());
  at::Tensor place = whole;
  if (held.dim() > 0)
    place = whole.slice(shard.dim, shard.range.begin, shard.range.end).slice(0, own.begin, own.end);
  // What another rank holds, too, is the same there.
  if (!place.isnan().any().item<bool>()) {
    EXPECT_TRUE(at::equal(place, held)) << name;
  }
  place.copy_(held);
}

std::vector<std::int64_t> lengths_of_step(const Dataset& data, const TrainOptions& run, int step) {
  return lengths_of(data, {(step - 1) * run.global_batch_size, run.global_batch_size});
}

// What a run with batches of unequal sequences will keep and send.
void predict(const Case& c, RunPlan plan, const Dataset& data, const TrainOptions& run,
             Trained& trained) {
  const auto size = static_cast<std::size_t>(plan.mesh.size());
  trained.predicted.assign(size, 0);
  trained.predicted_traffic.assign(size, {});
  for (int step = 1; step <= run.steps; ++step) {
    const std::vector<std::int64_t> lengths = lengths_of_step(data, run, step);
    const BatchPlan dealt = run.deal
                                ? run.deal(lengths)
                                : deal_longest_first(lengths, run.microbatches, plan.mesh.data());
    plan.schedule = lowered_schedule(c, dealt.num_microbatches());
    for (int rank = 0; rank < plan.mesh.size(); ++rank) {
      const MeshPlace place = place_of(rank, plan.mesh);
      const auto r = static_cast<std::size_t>(rank);
      plan.shares = token_shares(dealt, lengths, place.data, plan.mesh.tensor);
      trained.predicted[r] =
          static_cast<std::int64_t>(simulate(plan.schedule, byte_costs(plan))
                                        .devices[static_cast<std::size_t>(place.pipeline)]
                                        .peak_bytes);
      trained.predicted_traffic[r] += step_traffic(plan, place.pipeline, place.data);
    }
  }
}

// Batches as `run.deal` deals them.
std::shared_ptr<const BatchPlans> plans_of(const Case& c, const Dataset& data,
                                           const TrainOptions& run) {
  if (!run.deal) return nullptr;
  auto plans = std::make_shared<BatchPlans>();
  plans->name = "the test's plans";
  for (int step = 1; step <= run.steps; ++step) {
    const std::vector<std::int64_t> lengths = lengths_of_step(data, run, step);
    const BatchPlan dealt = run.deal(lengths);
    plans->steps[step] = {dealt, sha256_hex(lengths_text(lengths))};
    if (const int count = dealt.num_microbatches(); count != run.microbatches)
      plans->schedules.emplace(count, lowered_schedule(c, count));
  }
  return plans;
}

}  // namespace

ModelShape shape_of(ModelFamily family, bool tied) {
  ModelShape shape;
  shape.family = family;
  shape.layers = 8;
  shape.dim = 16;
  shape.heads = 2;
  shape.kv_heads = family == ModelFamily::llama ? 1 : 2;
  shape.ffn_dim = 32;
  shape.vocab_size = 64;
  shape.positions = family == ModelFamily::llama ? 0 : 16;
  shape.tied_embeddings = tied;
  return shape;
}

std::shared_ptr<const TokenSource> tokens(std::vector<std::int64_t> starts) {
  std::vector<std::int32_t> out;
  std::uint32_t state = 12345;
  for (int n = 0; n < 4000; ++n) {
    state = state * 1664525u + 1013904223u;
    // A little structure, so that there is something to learn.
    out.push_back(static_cast<std::int32_t>((state >> 24) % 16) + (n % 4) * 16);
  }
  return memory_source(std::move(out), std::move(starts));
}

Schedule lowered_schedule(const Case& c, int microbatches) {
  GeneratorOptions options;
  options.devices = c.devices;
  options.microbatches = microbatches;
  options.slices = c.slices;
  if (c.memory_cap > 0) options.memory_cap = c.memory_cap;
  Validation validation = validate(generate_schedule(c.schedule, options));
  EXPECT_TRUE(validation.valid());
  return add_reductions(validation.lowered);
}

RunPlan plan_of(const Case& c, const ModelShape& shape, const TrainOptions& run) {
  RunPlan plan = plan_for(shape, lowered_schedule(c, run.microbatches), run.data.sequence_length,
                          run.global_batch_size);
  if (run.change_schedule) run.change_schedule(plan.schedule);
  if (!c.layers.empty()) plan.layers_per_stage = c.layers;
  plan.mesh = run.mesh;
  plan.mesh.pipeline = c.devices;
  Config& config = plan.config;
  if (run.gpu) config.cluster.device = DeviceKind::cuda;
  config.recompute.level = run.level;
  config.debug.seed = 11;
  config.data.packing = run.data.packing;
  config.training.dtype = c.dtype;
  config.training.steps = 10;
  config.training.max_norm = run.max_norm;
  config.optimizer.name = run.optimizer;
  config.optimizer.lr = 0.01;
  if (run.narrow) {
    config.training.gradient_dtype = config.optimizer.state_dtype = NumberType::bfloat16;
    config.optimizer.master_weights = false;
    config.optimizer.rounding = Rounding::stochastic;
  }
  config.lr_scheduler.warmup_steps = 2;
  config.parallelism.gradient_bucket_mib = static_cast<double>(run.bucket_bytes) / (1 << 20);
  config.parallelism.deferred_validation = run.deferred;
  config.parallelism.sequence_parallel_norms = run.sequence_norms;
  config.parallelism.scatter_gather = run.scatter;
  if (run.sharded) config.parallelism.sharding = Sharding::parameters;
  return plan;
}

Trained train(const Case& c, const ModelShape& shape, const TrainOptions& run) {
  RunPlan plan = plan_of(c, shape, run);
  const Dataset data(run.source, run.data);
  plan.batch_plans = plans_of(c, data, run);
  const int num_ranks = plan.mesh.size();
  Trained trained;
  trained.peaks.resize(static_cast<std::size_t>(num_ranks));
  trained.traffic.resize(static_cast<std::size_t>(num_ranks));
  if (plan.ragged())
    predict(c, plan, data, run, trained);
  else
    for (const auto& device : simulate(plan.schedule, byte_costs(plan)).devices)
      trained.predicted.push_back(static_cast<std::int64_t>(device.peak_bytes));
  const RankDevices devices(
      {.device = plan.config.cluster.device, .partitions = run.partitions, .sms_per_partition = 8});
  std::mutex mutex;
  const auto body = [&](Communicator& world) {
    Machine machine{.device = devices.device()};
    if (run.gpu_each) machine.device.set_index(static_cast<at::DeviceIndex>(world.rank()));
    Trainer trainer(plan, data, world, machine);
    const auto take = [&](const std::optional<StepResult>& result) {
      if (!result) return;
      const std::lock_guard lock(mutex);
      trained.peaks[static_cast<std::size_t>(world.rank())] = result->executed.peak_stash_bytes;
      if (world.rank() != 0) return;
      trained.losses.push_back(result->loss);
      trained.norms.push_back(result->gradient_norm);
    };
    const auto find = [&](const std::string& name) -> Parameter& {
      for (Parameter* parameter : trainer.parameters())
        if (parameter->name == name) return *parameter;
      throw InternalError(name);
    };
    for (int n = 1; n <= run.steps; ++n) {
      take(trainer.advance(n));
      if (n > 1) continue;
      const std::lock_guard lock(mutex);
      for (const Weight& weight : trainer.weights())
        put_together(find(weight.name), weight.name, weight.own_gradient(), weight.own,
                     trained.first_gradients);
    }
    take(trainer.settle());
    const std::lock_guard lock(mutex);
    trained.traffic[static_cast<std::size_t>(world.rank())] = trainer.traffic();
    for (const Parameter* parameter : trainer.parameters())
      if (!plan.sharded())
        put_together(*parameter, parameter->name, parameter->value, {0, parameter->value.size(0)},
                     trained.weights);
    for (const Weight& weight : trainer.weights())
      if (plan.sharded())
        put_together(find(weight.name), weight.name, weight.own_value(), weight.own,
                     trained.weights);
    for (const Optimizer::State& state : trainer.optimizer().states())
      put_together(find(state.weight), state.name, state.tensor, state.own, trained.states);
  };
  run_threads(num_ranks, {}, [&](Communicator& threads) {
    at::set_num_threads(1);
    const auto stream = run.gpu_each ? std::make_unique<cuda::RankStream>(threads.rank())
                                     : devices.take(threads.rank());
    run.over ? run.over(threads, body) : body(threads);
  });
  return trained;
}

void expect_equal_bits(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, weight] : a.weights)
    EXPECT_TRUE(at::equal(weight, b.weights.at(name))) << name;
}

}  // namespace sluice::test
