#include "sluice/config/resolve.h"

#include <fmt/format.h>

#include <algorithm>

#include "sluice/cost/slices.h"

namespace sluice {

int kv_heads_of(const ModelConfig& model) { return model.kv_heads ? model.kv_heads : model.heads; }

int ffn_dim_of(const ModelConfig& model) {
  if (model.ffn_dim) return model.ffn_dim;
  if (model.shape != ModelFamily::llama) return 4 * model.dim;
  const int two_thirds = 8 * model.dim / 3;  // of 4 dim: SwiGLU has three matrices, not two
  return (two_thirds + 255) / 256 * 256;
}

std::int64_t data_ranks_of(const Config& config) {
  return std::int64_t{config.parallelism.data_parallel_replicate_degree} *
         config.parallelism.data_parallel_shard_degree;
}

bool is_ragged(const Config& config) { return config.data.packing == Packing::sequences; }

bool validates(const Config& config) {
  return config.data.validation_fraction > 0 && config.validation.interval > 0;
}

int microbatches_of(const Config& config) {
  const int given = config.parallelism.num_microbatches;
  if (given) return given;
  const std::int64_t batch = config.training.global_batch_size, ranks = data_ranks_of(config);
  // Unequal sequences need not divide.
  return static_cast<int>(
      std::max<std::int64_t>((batch + (is_ragged(config) ? ranks - 1 : 0)) / ranks, 1));
}

std::vector<double> memory_caps_of(const ParallelismConfig& parallelism) {
  const std::vector<double>& caps = parallelism.device_memory_mib;
  return caps == std::vector<double>{0} ? std::vector<double>{} : caps;
}

int slices_of(const ParallelismConfig& parallelism) {
  const SliceSizes& sizes = parallelism.slice_sizes;
  return sizes.list.empty() ? parallelism.slices : static_cast<int>(sizes.list.size());
}

std::vector<int> slice_sizes_of(const Config& config) {
  if (const auto& given = config.parallelism.slice_sizes.list; !given.empty()) return given;
  const auto sizes =
      even_slice_sizes(config.training.sequence_length, slices_of(config.parallelism));
  return {sizes.begin(), sizes.end()};
}

namespace {

AsynchronousOptions asynchronous_options(const AsynchronousConfig& asynchronous) {
  AsynchronousOptions options;
  options.order = asynchronous.order;
  options.pipes = asynchronous.pipes;
  options.in_flight = asynchronous.in_flight;
  options.fused = asynchronous.backward == BackwardKind::fused;
  options.border = asynchronous.border;
  options.update_slot = asynchronous.update_slot;
  if (asynchronous.weights != UsedWeights::automatic)
    options.weights =
        asynchronous.weights == UsedWeights::stash ? WeightVersions::stash : WeightVersions::newest;
  if (asynchronous.max_mismatch >= 0) options.max_mismatch = asynchronous.max_mismatch;
  if (asynchronous.max_delay >= 0) options.max_delay = asynchronous.max_delay;
  return options;
}

}  // namespace

bool goes_on(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  if (!parallelism.pipeline_parallel_schedule_csv.empty()) return false;
  try {
    return find_generator(parallelism.pipeline_parallel_schedule).knobs.windows;
  } catch (const UserError&) {
    return false;  // there is none of that name
  }
}

GeneratorOptions generator_options(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  GeneratorOptions options;
  options.devices = parallelism.pipeline_parallel_degree;
  options.microbatches = parallelism.num_microbatches;
  options.stages_per_device = parallelism.stages_per_device;
  options.group_size = parallelism.group_size;
  options.slices = slices_of(parallelism);
  if (options.slices > 1) {
    const std::vector<int>& sizes = parallelism.slice_sizes.list;
    options.slice_sizes.assign(sizes.begin(), sizes.end());
  }
  if (parallelism.memory_cap > 0) options.memory_cap = parallelism.memory_cap;
  if (goes_on(config)) {
    options.asynchronous = asynchronous_options(config.asynchronous);
    // No device is ahead of another by more than two microbatches for each hop.
    const int ahead =
        (2 * options.devices + options.microbatches - 1) / std::max(options.microbatches, 1);
    if (!config.asynchronous.flush) options.windows = 4 + 2 * ahead;
  }
  return options;
}

StalenessBounds staleness_bounds(const Config& config) {
  const AsynchronousConfig& given = config.asynchronous;
  StalenessBounds bounds{given.max_mismatch, given.max_delay};
  if (!goes_on(config)) return bounds;
  const Generator& generator = find_generator(config.parallelism.pipeline_parallel_schedule);
  const AsynchronousOptions settled = generator.settle(generator_options(config)).asynchronous;
  return {settled.max_mismatch.value_or(-1), settled.max_delay.value_or(-1)};
}

ModelConfig resolve_model(const ModelConfig& model, int sequence_length) {
  ModelConfig resolved = model;
  resolved.kv_heads = kv_heads_of(model);
  resolved.ffn_dim = ffn_dim_of(model);
  if (model.norm_epsilon == 0)
    resolved.norm_epsilon = model.shape == ModelFamily::bert ? 1e-12 : 1e-5;
  if (model.positions == 0) resolved.positions = sequence_length;
  return resolved;
}

Config resolve_config(const Config& config) {
  Config resolved = config;
  resolved.model = resolve_model(config.model, config.training.sequence_length);
  resolved.lr_scheduler.warmup_steps =
      std::min(config.lr_scheduler.warmup_steps, config.training.steps);
  if (config.optimizer.name == OptimizerKind::muon &&
      config.optimizer.muon_dtype == IterationType::automatic)
    resolved.optimizer.muon_dtype = config.cluster.device == DeviceKind::cuda
                                        ? IterationType::bfloat16
                                        : IterationType::float32;
  ParallelismConfig& parallelism = resolved.parallelism;
  parallelism.num_microbatches = microbatches_of(config);
  parallelism.device_memory_mib = memory_caps_of(config.parallelism);
  parallelism.slices = slices_of(config.parallelism);
  if (parallelism.slices > 1 && parallelism.slice_sizes.rule != SliceRule::balanced)
    parallelism.slice_sizes = {SliceRule::list, slice_sizes_of(config)};
  if (parallelism.pipeline_parallel_schedule_csv.empty() && parallelism.stages_per_device == 0)
    parallelism.stages_per_device =
        find_generator(parallelism.pipeline_parallel_schedule).knobs.default_stages_per_device;
  return resolved;
}

std::vector<std::string> config_notes(const Config& config) {
  const std::int64_t warmup = config.lr_scheduler.warmup_steps, steps = config.training.steps;
  if (warmup <= steps) return {};
  return {fmt::format(
      "lr_scheduler.warmup_steps is {} and training.steps is {}: the warm-up is shortened to {} "
      "steps",
      warmup, steps, steps)};
}

}  // namespace sluice
