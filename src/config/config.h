// The configuration of a training run: plain values in sections, as they stand in a TOML file and
// in flags `--section.key=value`. A flag wins over the file, the file over the defaults below. Only
// the table in schema.cpp says what a key is called, what it allows and what it means.
//
// A 0 or "" that stands for "work it out" (see each comment) is replaced by resolve_config.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/config/data_format.h"
#include "sluice/cost/model_shape.h"
#include "sluice/cost/number_type.h"
#include "sluice/schedule/generators/amdp_order.h"

namespace sluice {

enum class RopeScalingKind { none, llama3 };
constexpr auto names_of(RopeScalingKind) {
  return std::array<std::string_view, 2>{"none", "llama3"};
}

enum class OptimizerKind { adamw, sgd, nadam, muon };
constexpr auto names_of(OptimizerKind) {
  return std::array<std::string_view, 4>{"adamw", "sgd", "nadam", "muon"};
}

// The numbers that Muon's iteration is made of (automatic: bfloat16 on a GPU, else float32), and
// how the size of its updates depends on a matrix's.
enum class IterationType { automatic, float32, bfloat16 };
constexpr auto names_of(IterationType) {
  return std::array<std::string_view, 3>{"auto", "float32", "bfloat16"};
}
enum class MuonScale { adamw, spectral };
constexpr auto names_of(MuonScale) { return std::array<std::string_view, 2>{"adamw", "spectral"}; }

enum class Rounding { nearest, stochastic };
constexpr auto names_of(Rounding) {
  return std::array<std::string_view, 2>{"nearest", "stochastic"};
}

enum class Backend { automatic, threads, mpi, nccl };
constexpr auto names_of(Backend) {
  return std::array<std::string_view, 4>{"auto", "threads", "mpi", "nccl"};
}

enum class DeviceKind { cpu, cuda };
constexpr auto names_of(DeviceKind) { return std::array<std::string_view, 2>{"cpu", "cuda"}; }

// What is divided among the ranks of data_parallel_shard_degree: optimizer states (ZeRO-1), or
// these, gradients and weights (ZeRO-3).
enum class Sharding { states, parameters };
constexpr auto names_of(Sharding) {
  return std::array<std::string_view, 2>{"states", "parameters"};
}

// How the layers are divided among the stages.
enum class LayerRule { even, automatic, list };
constexpr auto names_of(LayerRule) {
  return std::array<std::string_view, 3>{"even", "auto", "list"};
}

// How a sequence is cut into slices.
enum class SliceRule { even, balanced, list };
constexpr auto names_of(SliceRule) {
  return std::array<std::string_view, 3>{"even", "balanced", "list"};
}

// Of schedules that go on from one update of the weights to the next: how their backwards run,
// which weights they use (auto: as the schedule does), and who keeps the states of a stage that
// several devices hold.
enum class BackwardKind { split, fused };
constexpr auto names_of(BackwardKind) { return std::array<std::string_view, 2>{"split", "fused"}; }
enum class UsedWeights { automatic, newest, stash };
constexpr auto names_of(UsedWeights) {
  return std::array<std::string_view, 3>{"auto", "newest", "stash"};
}
enum class CopyStates { owner, replicated };
constexpr auto names_of(CopyStates) {
  return std::array<std::string_view, 2>{"owner", "replicated"};
}

// A rule, or the rule list and a number for each part.
template <typename Rule>
struct RuleOrList {
  Rule rule = Rule::even;
  std::vector<int> list;
  bool operator==(const RuleOrList&) const = default;
};
using LayersPerStage = RuleOrList<LayerRule>;
using SliceSizes = RuleOrList<SliceRule>;

struct ModelConfig {
  ModelFamily shape = ModelFamily::gpt2;
  int layers = 8;
  int dim = 128;
  int heads = 4;
  int kv_heads = 0;      // 0: as many as heads
  int ffn_dim = 0;       // 0: 4 dim; llama: 8/3 dim, up to the next multiple of 256
  int vocab_size = 257;  // of the byte tokenizer: 256 and the end of a document
  int positions = 0;     // 0: the sequence length
  bool tied_embeddings = false;
  double rope_theta = 10000;
  RopeScalingKind rope_scaling = RopeScalingKind::none;  // llama3: the next four keys describe it
  double rope_factor = 8;
  double rope_low_freq_factor = 1;
  double rope_high_freq_factor = 4;
  int rope_original_positions = 8192;
  double norm_epsilon = 0;  // 0: 1e-12 for bert, else 1e-5
  double dropout = 0;
  bool operator==(const ModelConfig&) const = default;
};

struct DataConfig {
  std::string path;  // "": none; an error once data is read
  DataFormat format = DataFormat::automatic;
  std::string tokenizer;  // a tokenizer.json; "": bytes
  Packing packing = Packing::stream;
  Overlong overlong = Overlong::error;
  double validation_fraction = 0;
  bool operator==(const DataConfig&) const = default;
};

struct TrainingConfig {
  std::int64_t steps = 1000;
  int sequence_length = 256;               // with unequal sequences the most tokens of one
  int global_batch_size = 16;              // sequences
  NumberType dtype = NumberType::float32;  // of weights and activations
  NumberType gradient_dtype = NumberType::float32;
  double max_norm = 1;  // 0: no clipping
  bool operator==(const TrainingConfig&) const = default;
};

struct OptimizerConfig {
  OptimizerKind name = OptimizerKind::adamw;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double momentum_decay = 0.004;  // NAdam
  double momentum = 0.95;         // Muon, as are the next three
  int muon_steps = 5;
  IterationType muon_dtype = IterationType::automatic;
  MuonScale muon_scale = MuonScale::adamw;
  bool master_weights = true;  // of bfloat16 weights
  NumberType state_dtype = NumberType::float32;
  Rounding rounding = Rounding::nearest;
  bool operator==(const OptimizerConfig&) const = default;
};

struct LrSchedulerConfig {
  std::int64_t warmup_steps = 0;
  double min_lr_ratio = 0.1;
  bool operator==(const LrSchedulerConfig&) const = default;
};

struct ParallelismConfig {
  int pipeline_parallel_degree = 1;
  std::string pipeline_parallel_schedule = "1f1b";
  std::string pipeline_parallel_schedule_csv;  // "": none; else it wins over the schedule's name
  int num_microbatches = 0;                    // 0: one sequence each
  int stages_per_device = 0;                   // 0: the schedule's own
  int group_size = 0;                          // likewise
  LayersPerStage layers_per_stage;
  std::string costs;                      // a costs file; "": FLOPs are counted
  std::vector<double> device_memory_mib;  // one cap, or one per device; empty: none
  int slices = 1;
  SliceSizes slice_sizes;
  int slice_multiple = 0;  // of tokens, at which balanced slices begin; 0: 128 on a GPU, else 1
  double memory_cap = 0;   // stage-activations per device; 0: none
  bool fuse_backward = false;
  int tensor_parallel_degree = 1;
  bool sequence_parallel_norms = false;
  bool scatter_gather = true;  // between stages, with tensor parallelism
  int data_parallel_replicate_degree = 1;
  int data_parallel_shard_degree = 1;
  Sharding sharding = Sharding::states;
  double gradient_bucket_mib = 25;
  bool deferred_validation = false;
  bool operator==(const ParallelismConfig&) const = default;
};

// Which ranks share which sequences, where these are unequal.
struct FlexspConfig {
  bool enabled = false;           // every batch is planned before its step
  std::string strategy = "flex";  // config/batch_strategy.h
  int min_degree = 1;
  int max_degree = 0;  // 0: all ranks
  int trials = 5;
  std::string plan_file;  // batch plans to replay; "": none
  bool operator==(const FlexspConfig&) const = default;
};

// Schedules that do not wait between updates (docs/asynchronous.md).
struct AsynchronousConfig {
  AmdpOrder order = AmdpOrder::automatic;
  int pipes = 0;      // of a frozen order; 0: half the devices
  int in_flight = 0;  // likewise; 0: two
  BackwardKind backward = BackwardKind::split;
  int border = 0;       // 0: the order's own
  int update_slot = 0;  // likewise
  UsedWeights weights = UsedWeights::automatic;
  CopyStates states = CopyStates::owner;
  bool flush = false;     // every step ends before the next begins
  int max_mismatch = -1;  // -1: the schedule's own
  int max_delay = -1;     // likewise
  bool operator==(const AsynchronousConfig&) const = default;
};

struct RecomputeConfig {
  RecomputeLevel level = RecomputeLevel::none;
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
  Backend backend = Backend::automatic;  // automatic: chosen_backend (run/launch.h)
  double train_timeout_seconds = 100;
  bool operator==(const CommConfig&) const = default;
};

struct ClusterConfig {
  DeviceKind device = DeviceKind::cpu;
  int partitions = 0;         // 0: ranks have the whole GPU
  int sms_per_partition = 0;  // 0: all SMs, divided
  double peak_tflops = 0;     // 0: that of the GPU, if known
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
  FlexspConfig flexsp;
  AsynchronousConfig asynchronous;
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
// num_microbatches, slices, slice_sizes (with more than one slice, unless they are to be balanced:
// plan/plan_run.h) and, unless a CSV gives it, stages_per_device.
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
