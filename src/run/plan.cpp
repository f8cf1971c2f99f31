#include "sluice/run/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/config/model.h"
#include "sluice/cost/slices.h"
#include "sluice/run/batch_planner.h"
#include "sluice/run/runnable.h"

namespace sluice {
namespace {

void check_fit(const Config& config, const Schedule& schedule) {
  const ParallelismConfig& parallelism = config.parallelism;
  if (schedule.window_size() != parallelism.num_microbatches)
    throw user_error(
        "the schedule has {} microbatches, but parallelism.num_microbatches is {}: make them equal",
        schedule.window_size(), parallelism.num_microbatches);
  if (schedule.num_devices() != parallelism.pipeline_parallel_degree)
    throw user_error(
        "the schedule has {} devices, but parallelism.pipeline_parallel_degree is {}: make them "
        "equal",
        schedule.num_devices(), parallelism.pipeline_parallel_degree);
  if (const std::string problem = layers_problem(config, schedule.num_stages()); !problem.empty())
    throw UserError(problem);
}

// Sizes that a schedule does not say are even.
void fill_slices(const Config& config, Schedule& schedule) {
  const std::int64_t length = config.training.sequence_length;
  if (schedule.num_slices > 1 && schedule.slice_sizes.empty())
    schedule.slice_sizes = even_slice_sizes(length, schedule.num_slices);
  const std::int64_t sum =
      std::accumulate(schedule.slice_sizes.begin(), schedule.slice_sizes.end(), std::int64_t{0});
  if (!schedule.slice_sizes.empty() && sum != length)
    throw user_error(
        "the schedule's slices hold {} tokens and a sequence has {}: change the schedule's "
        "slice_sizes or training.sequence_length",
        sum, length);
}

}  // namespace

std::int64_t RunPlan::sequences() const {
  const std::int64_t parts = std::int64_t{mesh.data()} * num_microbatches();
  return padded_to(config.training.global_batch_size, parts) / parts;
}

std::vector<std::int64_t> RunPlan::slice_bounds() const {
  return sluice::slice_bounds(slice_sizes_of(schedule, config.training.sequence_length));
}

TokenShare RunPlan::share(int microbatch, int slice) const {
  if (!shares.empty()) return shares[static_cast<std::size_t>(microbatch)];
  const std::int64_t length = config.training.sequence_length;
  if (!ragged())
    return sequences() * (schedule.slice_sizes.empty()
                              ? length
                              : schedule.slice_sizes[static_cast<std::size_t>(slice)]);
  if (most_planned) return *most_planned;
  return batch_plans ? batch_plans->most : padded_to(sequences() * length, mesh.tensor);
}

const Schedule& RunPlan::schedule_of(int num_microbatches) const {
  if (num_microbatches == this->num_microbatches()) return schedule;
  if (planner) return planner->schedule(num_microbatches);
  SLUICE_CHECK(has_schedule(num_microbatches), "no schedule for {} microbatches", num_microbatches);
  return batch_plans->schedules.at(num_microbatches);
}

bool RunPlan::has_schedule(int num_microbatches) const {
  return num_microbatches == this->num_microbatches() ||
         (batch_plans && batch_plans->schedules.contains(num_microbatches));
}

TokenShare RunPlan::largest_share(int slice) const {
  if (shares.empty()) return share(0, slice);
  TokenShare most;
  for (const TokenShare& one : shares)
    most = {std::max(most.tokens, one.tokens), std::max(most.degree, one.degree)};
  return most;
}

std::string RunPlan::microbatch_text() const {
  return ragged() ? fmt::format("at most {}", counted(largest_share(0).tokens, "token"))
                  : counted(sequences(), "sequence");
}

StageLayers RunPlan::layers_of(int stage) const {
  const auto listed = layers_per_stage.begin();
  StageLayers layers;
  layers.first = std::accumulate(listed, listed + stage, std::int64_t{0});
  layers.end = layers.first + listed[stage];
  layers.embedding = stage == 0;
  layers.head = stage + 1 == static_cast<int>(layers_per_stage.size());
  return layers;
}

std::vector<int> RunPlan::stages_of(int device) const {
  const std::vector<int>& placed = schedule.placement.stages_of(device);
  const std::set<int> distinct(placed.begin(), placed.end());
  return {distinct.begin(), distinct.end()};
}

void set_schedule(RunPlan& plan, Schedule lowered) {
  check_runnable(lowered);
  plan.endless = nullptr;
  if (lowered.num_windows > 1) {
    check_goes_on(plan.config, lowered);
    const auto endless = std::make_shared<EndlessSchedule>(std::move(lowered));
    lowered = endless->whole(endless->head() + endless->ahead() + 3);
    check_ahead(*endless, lowered);
    plan.endless = endless;
  } else {
    check_ends(plan.config, lowered);
  }
  fill_slices(plan.config, lowered);
  plan.schedule = std::move(lowered);
}

RunPlan make_plan(const Config& config, Schedule lowered) {
  check_fit(config, lowered);
  RunPlan plan;
  plan.config = config;
  plan.shape = model_shape(config);
  plan.mesh = mesh_of(config);
  set_schedule(plan, std::move(lowered));
  const LayersPerStage& layers = config.parallelism.layers_per_stage;
  SLUICE_CHECK(layers.rule != LayerRule::automatic, "layers by {}", layers.rule);
  if (layers.rule == LayerRule::list)
    plan.layers_per_stage.assign(layers.list.begin(), layers.list.end());
  else
    plan.layers_per_stage = even_layers(config.model.layers, plan.schedule.num_stages());
  return plan;
}

std::vector<std::int64_t> even_layers(std::int64_t layers, int stages) {
  if (layers < stages)
    throw user_error("{} layers are too few for {} stages: use fewer stages or more layers", layers,
                     stages);
  std::vector<std::int64_t> out(static_cast<std::size_t>(stages), layers / stages);
  for (std::int64_t s = 0; s < layers % stages; ++s)
    ++out[static_cast<std::size_t>(s)];
  return out;
}

MeshShape mesh_of(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  return {.replicate = parallelism.data_parallel_replicate_degree,
          .shard = parallelism.data_parallel_shard_degree,
          .pipeline = parallelism.pipeline_parallel_degree,
          .tensor = parallelism.tensor_parallel_degree};
}

MeasuredOn measured_on(const RunPlan& plan) {
  MeasuredOn on;
  on.set_model(plan.shape, plan.config.recompute.level);
  on.sequence_length = plan.config.training.sequence_length;
  on.sequences = plan.sequences();
  on.dtype = name_of(plan.config.training.dtype);
  on.tensor_parallel_degree = plan.mesh.tensor;
  on.device = name_of(plan.config.cluster.device);
  return on;
}

}  // namespace sluice
