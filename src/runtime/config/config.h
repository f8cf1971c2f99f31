// The configuration of a training run: plain values in sections, as they stand in a TOML file and
// in flags `--section.key=value`. A flag wins over the file, the file over the defaults below. Only
// the table in schema.cpp says what a key is called, what it allows and what it means.
//
// A 0 or "" that stands for "work it out" (see each comment) is replaced by resolve_config.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace sluice {

struct ModelConfig {
  std::string shape = "gpt2";  // gpt2, llama, bert
  int layers = 8;
  int dim = 128;
  int heads = 4;
  int kv_heads = 0;      // 0: as many as heads
  int ffn_dim = 0;       // 0: 4 dim; llama: 8/3 dim, up to the next multiple of 256
  int vocab_size = 257;  // of the byte tokenizer: 256 and the end of a document
  int positions = 0;     // 0: the sequence length
  bool tied_embeddings = false;
  double rope_theta = 10000;
  std::string rope_scaling = "none";  // none, llama3, which the next four keys describe
  double rope_factor = 8;
  double rope_low_freq_factor = 1;
  double rope_high_freq_factor = 4;
  int rope_original_positions = 8192;
  double norm_epsilon = 0;  // 0: 1e-12 for bert, else 1e-5
  double dropout = 0;
  bool operator==(const ModelConfig&) const = default;
};

struct DataConfig {
  std::string path;                // "": none; an error once data is read
  std::string format = "auto";     // auto, text, jsonl, bytes, megatron
  std::string tokenizer;           // a tokenizer.json; "": bytes
  std::string packing = "stream";  // stream, documents
  double validation_fraction = 0;
  bool operator==(const DataConfig&) const = default;
};

struct TrainingConfig {
  std::int64_t steps = 1000;
  int sequence_length = 256;
  int global_batch_size = 16;              // sequences
  std::string dtype = "float32";           // float32, bfloat16
  std::string gradient_dtype = "float32";  // float32, bfloat16
  double max_norm = 1;                     // 0: no clipping
  bool operator==(const TrainingConfig&) const = default;
};

struct OptimizerConfig {
  std::string name = "adamw";  // adamw, sgd
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool master_weights = true;           // of bfloat16 weights
  std::string state_dtype = "float32";  // float32, bfloat16
  std::string rounding = "nearest";     // nearest, stochastic
  bool operator==(const OptimizerConfig&) const = default;
};

struct LrSchedulerConfig {
  std::int64_t warmup_steps = 0;
  double min_lr_ratio = 0.1;
  bool operator==(const LrSchedulerConfig&) const = default;
};

// How the layers are divided among the stages: by a rule (even, auto), or by the rule "list" and a
// number for each stage.
struct LayersPerStage {
  std::string rule = "even";
  std::vector<int> list;
  bool operator==(const LayersPerStage&) const = default;
};

struct ParallelismConfig {
  int pipeline_parallel_degree = 1;
  std::string pipeline_parallel_schedule = "1f1b";
  std::string pipeline_parallel_schedule_csv;  // "": none; else it wins over the schedule's name
  int num_microbatches = 0;                    // 0: one sequence each
  int stages_per_device = 0;                   // 0: the schedule's own
  LayersPerStage layers_per_stage;
  std::string partition_costs;   // "": auto counts multiplications
  double device_memory_mib = 0;  // 0: no cap for auto
  int slices = 1;
  std::vector<int> slice_sizes;  // empty: equal slices
  double memory_cap = 0;         // stage-activations per device; 0: none
  bool fuse_backward = false;
  int tensor_parallel_degree = 1;
  bool sequence_parallel_norms = false;
  bool scatter_gather = true;  // between stages, with tensor parallelism
  int data_parallel_replicate_degree = 1;
  int data_parallel_shard_degree = 1;
  double gradient_bucket_mib = 25;
  bool deferred_validation = false;
  bool operator==(const ParallelismConfig&) const = default;
};

struct RecomputeConfig {
  std::string level = "none";  // none, elementwise, mlp, all-but-attention, full
  bool operator==(const RecomputeConfig&) const = default;
};

struct CheckpointConfig {
  std::string folder = "checkpoints";  // "": none is written
  std::int64_t interval = 500;         // 0: only at the end
  int keep_latest_k = 3;               // 0: all
  std::string load = "latest";         // latest, none, or a path
  bool operator==(const CheckpointConfig&) const = default;
};

struct ValidationConfig {
  std::int64_t interval = 0;  // 0: never
  std::int64_t batches = 0;   // 0: all held-out data
  bool operator==(const ValidationConfig&) const = default;
};

struct GenerateConfig {
  std::string prompt;  // "": no sample
  bool operator==(const GenerateConfig&) const = default;
};

struct CommConfig {
  std::string backend = "auto";  // auto, threads, mpi, nccl; auto: chosen_backend (runtime/ranks.h)
  double train_timeout_seconds = 100;
  bool operator==(const CommConfig&) const = default;
};

struct ClusterConfig {
  std::string device = "cpu";  // cpu, cuda
  int partitions = 0;          // 0: ranks have the whole GPU
  int sms_per_partition = 0;   // 0: all SMs, divided
  double peak_tflops = 0;      // 0: that of the GPU, if known
  bool operator==(const ClusterConfig&) const = default;
};

struct MetricsConfig {
  std::string folder = "metrics";  // "": none is written
  std::int64_t log_freq = 1;       // steps from one row and line to the next
  bool progress = true;
  bool operator==(const MetricsConfig&) const = default;
};

struct DebugConfig {
  std::int64_t seed = 0;
  bool operator==(const DebugConfig&) const = default;
};

struct Config {
  ModelConfig model;
  DataConfig data;
  TrainingConfig training;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  ParallelismConfig parallelism;
  RecomputeConfig recompute;
  CheckpointConfig checkpoint;
  ValidationConfig validation;
  GenerateConfig generate;
  CommConfig comm;
  ClusterConfig cluster;
  MetricsConfig metrics;
  DebugConfig debug;
  bool operator==(const Config&) const = default;
};

// A configuration and where its values come from: key ("model.layers") to "examples/a.toml:7" or
// "flag --model.layers", one printable line. A key that is not in `origins` has its default.
struct LoadedConfig {
  Config values;
  std::map<std::string, std::string> origins;
};

// The defaults, overlaid with the file (path "" for none) and then with the flags, the words of the
// command line in order: `--model.layers=8`, or `--model.layers` and `8`; a switch may stand alone.
// Each single value is then in its range; validate_config checks how they fit together. Throws
// UserError: one line with file:line:column or the flag, the value and what is allowed.
LoadedConfig load_config(const std::string& path, std::span<const std::string> flags);
// The same from TOML text; `name` stands in messages for the file's path.
LoadedConfig load_config_text(const std::string& text, const std::string& name,
                              std::span<const std::string> flags);

// What does not fit together, one line per problem: value, cause, remedy. Empty when all is well.
// Reads no file: the data, the checkpoint and a schedule's CSV are checked when they are opened.
std::vector<std::string> validate_config(const Config& config);

// Why parallelism.layers_per_stage cannot divide the layers among `stages` stages; "" if it can.
// validate_config checks this for a named schedule; code that reads a CSV checks it again.
std::string layers_problem(const Config& config, std::int64_t stages);

// A copy in which every value is worked out: kv_heads, ffn_dim, positions, norm_epsilon,
// num_microbatches, slices, slice_sizes (with more than one slice; equal, or the first ones one
// token longer if the length does not divide evenly) and, unless a CSV gives it, stages_per_device.
// A warm-up longer than the run is shortened to it. REQUIRES: validate_config(config).empty()
Config resolve_config(const Config& config);
// The given values that resolve_config changes, one line each.
std::vector<std::string> config_notes(const Config& config);

// Every key as TOML, with the origin of each value as a comment. Reading it back gives the same
// values.
std::string print_config(const LoadedConfig& config);
// The same without comments: equal configurations give equal text.
std::string config_text(const Config& config);

}  // namespace sluice
