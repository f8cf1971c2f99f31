// What the table cannot say: values that must fit together.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/config/batch_strategy.h"
#include "sluice/config/config.h"
#include "sluice/config/problems.h"
#include "sluice/config/resolve.h"

namespace sluice {
namespace {

constexpr int kByteTokens = 257;  // of the byte tokenizer

constexpr std::int64_t kMaxRanks = 1 << 20;

void check_rope(const ModelConfig& model, Problems& problems) {
  if (model.rope_scaling == RopeScalingKind::llama3) {
    if (model.shape != ModelFamily::llama)
      problems.add(
          "model.rope_scaling is llama3 and model.shape is {}: only llama has rotary positions; "
          "leave the key out or use llama",
          model.shape);
    if (model.rope_high_freq_factor <= model.rope_low_freq_factor)
      problems.add(
          "model.rope_high_freq_factor is {}: needs to be above model.rope_low_freq_factor {}",
          number(model.rope_high_freq_factor), number(model.rope_low_freq_factor));
    return;
  }
  const ModelConfig usual;
  const auto check = [&](const char* key, double value, double otherwise) {
    if (value != otherwise)
      problems.add(
          "model.{} is {} and model.rope_scaling is none: it has no effect; set model.rope_scaling "
          "= llama3, or leave the key out",
          key, number(value));
  };
  check("rope_factor", model.rope_factor, usual.rope_factor);
  check("rope_low_freq_factor", model.rope_low_freq_factor, usual.rope_low_freq_factor);
  check("rope_high_freq_factor", model.rope_high_freq_factor, usual.rope_high_freq_factor);
  check("rope_original_positions", model.rope_original_positions, usual.rope_original_positions);
}

void check_model(const Config& config, Problems& problems) {
  const ModelConfig& model = config.model;
  const int kv_heads = kv_heads_of(model);
  const int length = config.training.sequence_length;
  check_rope(model, problems);
  if (model.dim % model.heads != 0)
    problems.add("model.heads is {}: does not divide model.dim {}; change one of them", model.heads,
                 model.dim);
  else if (model.shape == ModelFamily::llama && model.dim / model.heads % 2 != 0)
    problems.add(
        "model.heads is {}: each head then has {} dimensions, and rotary positions need an even "
        "number; change model.heads or model.dim",
        model.heads, model.dim / model.heads);
  if (model.heads % kv_heads != 0)
    problems.add("model.kv_heads is {}: does not divide model.heads {}; change one of them",
                 kv_heads, model.heads);
  else if (model.shape != ModelFamily::llama && kv_heads != model.heads)
    problems.add(
        "model.kv_heads is {}: {} has one for each of its {} heads; leave the key out or use llama",
        kv_heads, model.shape, model.heads);
  if (model.positions != 0 && length > model.positions)
    problems.add(
        "training.sequence_length is {}: longer than model.positions {}; use shorter sequences or "
        "more positions",
        length, model.positions);
  const bool masks = model.shape == ModelFamily::bert;
  const int tokens = masks ? kByteTokens + 1 : kByteTokens;
  const DataFormat format = config.data.format;
  const bool is_text =
      format == DataFormat::text || format == DataFormat::jsonl || format == DataFormat::bytes;
  if (format == DataFormat::bytes && !config.data.tokenizer.empty())
    problems.add(
        "data.format is bytes and data.tokenizer is '{}': raw bytes are their own tokens; leave "
        "one of them out",
        config.data.tokenizer);
  if (is_text && config.data.tokenizer.empty() && model.vocab_size < tokens)
    problems.add(
        "model.vocab_size is {}: data.format {} gives bytes, which need {} tokens (256, the end of "
        "a document{}); use {}",
        model.vocab_size, config.data.format, tokens, masks ? ", the mask" : "", tokens);
}

// What tensor ranks divide must divide.
void check_tensor_ranks(const Config& config, Problems& problems) {
  const int ranks = config.parallelism.tensor_parallel_degree;
  const ModelConfig& model = config.model;
  const int kv_heads = kv_heads_of(model);
  struct Divided {
    const char* key;
    int value;
  };
  for (const auto& [key, value] :
       {Divided{"model.heads", model.heads}, Divided{"model.ffn_dim", ffn_dim_of(model)},
        Divided{"model.vocab_size", model.vocab_size}})
    if (value % ranks != 0)
      problems.add(
          "{} is {}: does not divide among parallelism.tensor_parallel_degree {} ranks; change one "
          "of them",
          key, value, ranks);
  if (model.heads % ranks == 0 && kv_heads % ranks != 0 && ranks % kv_heads != 0)
    problems.add(
        "model.kv_heads is {}: neither a multiple nor a divisor of "
        "parallelism.tensor_parallel_degree {}; change one of them",
        kv_heads, ranks);
  // Unequal sequences are padded until they divide.
  if (!config.parallelism.sequence_parallel_norms || ranks == 1 || is_ragged(config)) return;
  const std::int64_t sequences =
      config.training.global_batch_size / data_ranks_of(config) / microbatches_of(config);
  const bool balanced = config.parallelism.slice_sizes.rule == SliceRule::balanced;
  for (const int tokens :
       balanced ? std::vector{config.training.sequence_length} : slice_sizes_of(config))
    if (sequences * tokens % ranks != 0) {
      problems.add(
          "parallelism.sequence_parallel_norms is true: a microbatch of {} sequences in slices of "
          "{} tokens does not divide among {} tensor ranks; change training.sequence_length or "
          "parallelism.slice_sizes",
          sequences, tokens, ranks);
      break;
    }
}

// Keys that belong to an optimizer are given only with it.
void check_optimizer_keys(const Config& config, Problems& problems) {
  const OptimizerConfig &given = config.optimizer, usual;
  const auto check = [&](std::string_view key, bool differs, OptimizerKind of) {
    if (differs && given.name != of)
      problems.add("optimizer.{} is given, and only optimizer.name = {} reads it: leave it out",
                   key, of);
  };
  check("momentum_decay", given.momentum_decay != usual.momentum_decay, OptimizerKind::nadam);
  check("momentum", given.momentum != usual.momentum, OptimizerKind::muon);
  check("muon_steps", given.muon_steps != usual.muon_steps, OptimizerKind::muon);
  check("muon_scale", given.muon_scale != usual.muon_scale, OptimizerKind::muon);
  check("muon_dtype", given.muon_dtype != usual.muon_dtype, OptimizerKind::muon);
}

// What gradients, weights and states are made of.
void check_types(const Config& config, Problems& problems) {
  const OptimizerConfig& optimizer = config.optimizer;
  const bool narrow_weights = config.training.dtype == NumberType::bfloat16;
  if (config.training.gradient_dtype == NumberType::bfloat16 && !narrow_weights)
    problems.add(
        "training.gradient_dtype is bfloat16: training.dtype is {}, and gradients are no narrower "
        "than weights; set that to bfloat16, or leave the key out",
        config.training.dtype);
  const bool rounds_weights = narrow_weights && !optimizer.master_weights;
  const bool rounds_states =
      optimizer.name != OptimizerKind::sgd && optimizer.state_dtype == NumberType::bfloat16;
  if (optimizer.rounding == Rounding::stochastic && !rounds_weights && !rounds_states)
    problems.add(
        "optimizer.rounding is stochastic: {}, so no update is rounded; leave the key out{}",
        narrow_weights ? "bfloat16 weights have float32 masters and the states are float32"
                       : "weights and states are float32",
        narrow_weights ? ", or set optimizer.master_weights = false" : "");
  check_optimizer_keys(config, problems);
  const ParallelismConfig& parallelism = config.parallelism;
  if (optimizer.name == OptimizerKind::muon && parallelism.sharding == Sharding::parameters &&
      parallelism.data_parallel_shard_degree > 1)
    problems.add(
        "parallelism.sharding is parameters: it divides matrices by rows, and optimizer.name = "
        "muon needs whole ones; use parallelism.sharding = states");
}

// Microbatches of as many sequences each.
void check_batch(const Config& config, Problems& problems) {
  if (is_ragged(config)) return;  // they are dealt by their tokens
  const int batch = config.training.global_batch_size;
  const int microbatches = microbatches_of(config);
  const std::int64_t data = data_ranks_of(config);
  if (batch % data != 0)
    problems.add(
        "training.global_batch_size is {}: does not divide among {} data-parallel copies "
        "(parallelism.data_parallel_replicate_degree x data_parallel_shard_degree); change one of "
        "them",
        batch, data);
  else if (batch % (data * microbatches) != 0)
    problems.add(
        "parallelism.num_microbatches is {}: does not divide training.global_batch_size {}{}; "
        "change one of them",
        microbatches, batch,
        data > 1
            ? fmt::format(", of which each of {} data-parallel copies takes {}", data, batch / data)
            : "");
}

// What would count for nothing.
void check_ignored(const FlexspConfig& flexsp, Problems& problems) {
  const FlexspConfig defaults;
  const auto check = [&](const char* key, const auto& value, const auto& otherwise) {
    if (flexsp.enabled || value == otherwise) return;
    if (flexsp.plan_file.empty())
      problems.add(
          "flexsp.{} is {} and flexsp.enabled is false: no batch is planned; set flexsp.enabled = "
          "true, or leave the key out",
          key, value);
    else
      problems.add(
          "flexsp.{} is {} and flexsp.plan_file is {}: plans are replayed as they are; leave the "
          "key out",
          key, value, flexsp.plan_file);
  };
  check("strategy", flexsp.strategy, defaults.strategy);
  check("min_degree", flexsp.min_degree, defaults.min_degree);
  check("max_degree", flexsp.max_degree, defaults.max_degree);
  check("trials", flexsp.trials, defaults.trials);
  if (flexsp.enabled && flexsp.strategy != defaults.strategy && flexsp.trials != defaults.trials)
    problems.add(
        "flexsp.trials is {} and flexsp.strategy is {}: only flex tries numbers of microbatches; "
        "leave the key out",
        flexsp.trials, flexsp.strategy);
}

// Who plans the batches of unequal sequences.
void check_flexsp(const Config& config, Problems& problems) {
  const FlexspConfig& flexsp = config.flexsp;
  if (!flexsp.plan_file.empty() && !is_ragged(config))
    problems.add(
        "flexsp.plan_file is {} and data.packing is {}: batch plans deal sequences of their own "
        "lengths; set data.packing = sequences, or leave the key out",
        flexsp.plan_file, config.data.packing);
  if (flexsp.enabled && !is_ragged(config))
    problems.add(
        "flexsp.enabled is true and data.packing is {}: batch plans deal sequences of their own "
        "lengths; set data.packing = sequences, or leave the key out",
        config.data.packing);
  if (flexsp.enabled && !flexsp.plan_file.empty())
    problems.add(
        "flexsp.enabled is true and flexsp.plan_file is {}: batches are either planned or "
        "replayed; leave one of them out",
        flexsp.plan_file);
  if (!batch_strategy(flexsp.strategy))
    problems.add(
        "flexsp.strategy is {}: needs flex, batch-ada, or fixed:D with a degree D that is a power "
        "of two, for example fixed:8",
        flexsp.strategy);
  check_ignored(flexsp, problems);
  if (flexsp.max_degree > 0 && flexsp.max_degree < flexsp.min_degree)
    problems.add("flexsp.max_degree is {} and flexsp.min_degree is {}: change one of them",
                 flexsp.max_degree, flexsp.min_degree);
}

void check_training(const Config& config, Problems& problems) {
  check_batch(config, problems);
  check_types(config, problems);
  if (config.data.overlong != Overlong::error && !is_ragged(config))
    problems.add(
        "data.overlong is {} and data.packing is {}: only with sequences can a document be too "
        "long; set data.packing = sequences, or leave the key out",
        config.data.overlong, config.data.packing);
  check_flexsp(config, problems);
  if (config.validation.interval > 0 && config.data.validation_fraction == 0)
    problems.add(
        "validation.interval is {}: data.validation_fraction is 0, so no data is held out; set it, "
        "for example to 0.05",
        config.validation.interval);
}

void check_mesh(const Config& config, Problems& problems) {
  const ParallelismConfig& parallelism = config.parallelism;
  const std::int64_t pipelines = data_ranks_of(config);
  const std::int64_t each =
      std::int64_t{parallelism.pipeline_parallel_degree} * parallelism.tensor_parallel_degree;
  if (pipelines > kMaxRanks / each)
    problems.add(
        "the mesh of {} data x {} pipeline x {} tensor ranks is too large: at most {} ranks; lower "
        "the parallelism degrees",
        pipelines, parallelism.pipeline_parallel_degree, parallelism.tensor_parallel_degree,
        kMaxRanks);
  if (parallelism.sharding == Sharding::parameters && parallelism.data_parallel_shard_degree == 1)
    problems.add(
        "parallelism.sharding is parameters and parallelism.data_parallel_shard_degree is 1: there "
        "is no rank to divide them with; raise the degree, or leave the key out");
}

void check_generate(const Config& config, Problems& problems) {
  if (config.generate.prompt.empty()) return;
  if (config.checkpoint.folder.empty())
    problems.add(
        "generate.prompt is set and checkpoint.folder is empty: the sample comes from the last "
        "checkpoint; name a folder");
  if (config.model.shape == ModelFamily::bert)
    problems.add(
        "generate.prompt is set: bert fills in masked tokens and cannot continue a text; leave the "
        "key out");
  if (config.model.vocab_size > kByteTokens && config.data.tokenizer.empty())
    problems.add(
        "generate.prompt is set and model.vocab_size is {}: text is for the byte tokenizer's {} "
        "tokens; name the model's own, data.tokenizer",
        config.model.vocab_size, kByteTokens);
}

void check_cluster(const Config& config, Problems& problems) {
  const ClusterConfig& cluster = config.cluster;
  const ParallelismConfig& parallelism = config.parallelism;
  if (cluster.sms_per_partition > 0 && cluster.partitions == 0)
    problems.add(
        "cluster.sms_per_partition is {} and cluster.partitions is 0: set cluster.partitions, too",
        cluster.sms_per_partition);
  if (cluster.device == DeviceKind::cpu) {
    if (cluster.partitions > 0)
      problems.add(
          "cluster.partitions is {} and cluster.device is cpu: only a GPU (cuda) is divided",
          cluster.partitions);
    if (config.comm.backend == Backend::nccl)
      problems.add(
          "comm.backend is nccl and cluster.device is cpu: NCCL is for ranks with a GPU each; set "
          "cluster.device = cuda, or use mpi");
    return;
  }
  if (config.comm.backend == Backend::nccl) {
    if (cluster.partitions > 0)
      problems.add(
          "cluster.partitions is {} and comm.backend is nccl: there each rank has a whole GPU; "
          "leave one of them out",
          cluster.partitions);
    return;
  }
  if (cluster.partitions > 0 && cluster.partitions != parallelism.pipeline_parallel_degree)
    problems.add(
        "cluster.partitions is {} and parallelism.pipeline_parallel_degree is {}: each rank of the "
        "pipeline has one part; make them equal",
        cluster.partitions, parallelism.pipeline_parallel_degree);
  if (config.comm.backend == Backend::mpi)
    problems.add(
        "cluster.device is cuda and comm.backend is mpi: ranks that share a GPU are threads, and "
        "ranks with a GPU each use nccl; leave comm.backend out");
  const int others = parallelism.tensor_parallel_degree *
                     parallelism.data_parallel_replicate_degree *
                     parallelism.data_parallel_shard_degree;
  if (others > 1)
    problems.add(
        "cluster.device is cuda with {} ranks beside the pipeline's (tensor x data): on one GPU "
        "ranks form a pipeline; set the other degrees to 1, or give each rank a GPU (comm.backend "
        "= nccl)",
        others);
}

}  // namespace

std::vector<std::string> validate_config(const Config& config) {
  Problems problems;
  check_model(config, problems);
  check_mesh(config, problems);
  check_tensor_ranks(config, problems);
  check_training(config, problems);
  check_schedule(config, problems);
  check_generate(config, problems);
  check_cluster(config, problems);
  return problems.take();
}

}  // namespace sluice
