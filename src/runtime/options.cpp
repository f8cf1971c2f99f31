#include "runtime/options.h"

#include "base/error.h"
#include "runtime/ranks.h"

namespace sluice {
namespace {

at::ScalarType dtype_named(const std::string& name) {
  return name == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

std::int64_t size_of(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace

MeshShape mesh_shape(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  return {.replicate = parallelism.data_parallel_replicate_degree,
          .shard = parallelism.data_parallel_shard_degree,
          .pipeline = parallelism.pipeline_parallel_degree,
          .tensor = parallelism.tensor_parallel_degree};
}

at::ScalarType model_dtype(const Config& config) { return dtype_named(config.training.dtype); }

RecomputeLevel recompute_level(const Config& config) {
  const std::string& level = config.recompute.level;
  if (level == "elementwise") return RecomputeLevel::elementwise;
  if (level == "mlp") return RecomputeLevel::mlp;
  if (level == "all-but-attention") return RecomputeLevel::all_but_attention;
  return level == "full" ? RecomputeLevel::full : RecomputeLevel::none;
}

TrainerOptions trainer_options(const Config& config, const Schedule& schedule) {
  TrainerOptions options;
  options.shape = model_shape(config);
  const LayersPerStage& layers = config.parallelism.layers_per_stage;
  SLUICE_CHECK(layers.rule == "list" || layers.rule == "even", "layers by {}", layers.rule);
  if (layers.rule == "list")
    options.layers_per_stage.assign(layers.list.begin(), layers.list.end());
  else
    options.layers_per_stage = even_layers(config.model.layers, schedule.num_stages());
  options.level = recompute_level(config);
  options.kind = {model_dtype(config), dtype_named(config.training.gradient_dtype)};
  if (config.cluster.device == "cuda")
    options.kind.device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(own_gpu(config.comm)));
  options.seed = static_cast<std::uint64_t>(config.debug.seed);
  options.global_batch_size = config.training.global_batch_size;
  options.sequence_length = config.training.sequence_length;
  options.optimizer.kind =
      config.optimizer.name == "sgd" ? OptimizerKind::sgd : OptimizerKind::adamw;
  options.optimizer.beta1 = config.optimizer.beta1;
  options.optimizer.beta2 = config.optimizer.beta2;
  options.optimizer.epsilon = config.optimizer.eps;
  options.optimizer.weight_decay = config.optimizer.weight_decay;
  options.optimizer.master_weights = config.optimizer.master_weights;
  options.optimizer.state_dtype = dtype_named(config.optimizer.state_dtype);
  options.optimizer.rounding =
      config.optimizer.rounding == "stochastic" ? Rounding::stochastic : Rounding::nearest;
  options.optimizer.seed = options.seed;
  options.learning_rate = config.optimizer.lr;
  options.warmup_steps = config.lr_scheduler.warmup_steps;
  options.num_steps = config.training.steps;
  options.min_lr_ratio = config.lr_scheduler.min_lr_ratio;
  options.max_norm = config.training.max_norm;
  const ParallelismConfig& parallelism = config.parallelism;
  options.mesh = mesh_shape(config);
  options.sequence_parallel_norms = parallelism.sequence_parallel_norms;
  options.scatter_gather = parallelism.scatter_gather;
  options.gradient_bucket_bytes =
      static_cast<std::int64_t>(parallelism.gradient_bucket_mib * (1 << 20));
  options.deferred_validation = parallelism.deferred_validation;
  return options;
}

StagedModel staged_model(const TrainerOptions& options, const Schedule& schedule) {
  return {.shape = options.shape,
          .layers_per_stage = options.layers_per_stage,
          .level = options.level,
          .element_bytes = options.kind.element_bytes(),
          .sequences = options.global_batch_size / options.mesh.data() / schedule.num_microbatches,
          .sequence_length = options.sequence_length,
          .tensor = options.mesh.tensor,
          .sequence_norms = options.sequence_parallel_norms && options.mesh.tensor > 1,
          .scatter = options.scatter_gather && options.mesh.tensor > 1,
          .shard = options.mesh.shard,
          .replicate = options.mesh.replicate,
          .gradient_bytes = size_of(options.kind.gradient_dtype),
          .moments = options.optimizer.kind == OptimizerKind::adamw ? 2 : 0,
          .moment_bytes = size_of(options.optimizer.state_dtype),
          .masters = options.optimizer.master_weights,
          .gpu = options.kind.on_gpu(),
          .head_in_forward = head_in_forward(options)};
}

MeasuredOn measured_on(const TrainerOptions& options, const Schedule& schedule) {
  MeasuredOn on;
  on.set_model(options.shape, options.level);
  on.sequence_length = options.sequence_length;
  on.sequences = options.global_batch_size / options.mesh.data() / schedule.num_microbatches;
  on.dtype = options.kind.dtype == at::kBFloat16 ? "bfloat16" : "float32";
  on.tensor_parallel_degree = options.mesh.tensor;
  on.device = options.kind.on_gpu() ? "cuda" : "cpu";
  return on;
}

}  // namespace sluice
