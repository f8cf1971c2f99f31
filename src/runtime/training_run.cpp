#include "runtime/training_run.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "runtime/files/checkpoint.h"
#include "runtime/files/checkpoint_folder.h"
#include "runtime/files/sha256.h"

namespace sluice {
namespace {

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

Dtype dtype_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return Dtype::f32;
  SLUICE_CHECK(tensor.scalar_type() == at::kBFloat16, "a tensor of type {} cannot be saved",
               toString(tensor.scalar_type()));
  return Dtype::bf16;
}

// What this rank saves and loads: weights and optimizer states by name.
struct Saved {
  std::string name;
  at::Tensor tensor;
};

std::vector<Saved> saved_tensors(Trainer& trainer) {
  std::vector<Saved> out;
  for (const Parameter* parameter : trainer.parameters())
    out.push_back({parameter->name, parameter->value});
  for (const Optimizer::State& state : trainer.optimizer().states())
    out.push_back({state.name, state.tensor});
  return out;
}

// A tied head is the embedding under another name: one of them is on disk.
std::string stored_name(const std::string& name, bool tied) {
  constexpr std::string_view kHead = "head.weight";
  return tied && name.starts_with(kHead) ? "embedding.weight" + name.substr(kHead.size()) : name;
}

class Saver {
 public:
  Saver(const TrainingRun& run, Communicator& world, Trainer& trainer, std::int64_t start_step)
      : run_(run), world_(world), trainer_(trainer), last_saved_(start_step) {
    if (run.config.checkpoint.folder.empty()) return;
    const CheckpointFolderOptions options{.folder = run.config.checkpoint.folder,
                                          .rank = world.rank(),
                                          .num_ranks = world.size(),
                                          .start_step = start_step,
                                          .keep_latest_k = run.config.checkpoint.keep_latest_k};
    if (world.rank() == 0) folder_.emplace(files_, options);
    world.barrier("checkpoint folder");
    if (world.rank() != 0) folder_.emplace(files_, options);
  }

  void save(std::int64_t step) {
    if (!folder_ || step == last_saved_) return;
    std::vector<TensorPiece> pieces;
    std::vector<at::Tensor> tensors;
    const bool tied = run_.config.model.tied_embeddings;
    for (const Saved& saved : saved_tensors(trainer_)) {
      if (stored_name(saved.name, tied) != saved.name || !owns(saved.name)) continue;
      tensors.push_back(saved.tensor.contiguous());
      pieces.push_back(whole_tensor({.name = saved.name,
                                     .dtype = dtype_of(saved.tensor),
                                     .shape = saved.tensor.sizes().vec()}));
    }
    folder_->write_shard(step, pieces, [&](std::size_t index) {
      return std::span<const std::byte>(bytes_of(tensors[index]));
    });
    world_.barrier("checkpoint shards");
    if (world_.rank() == 0) {
      CheckpointInfo info;
      info.step = step;
      info.mesh.pipeline = world_.size();
      info.schedule = run_.lowered.name;
      info.config_sha256 = sha256_hex(config_text(run_.config));
      folder_->commit(info);
      run_.on_note(fmt::format("saved step {} in {}", step, run_.config.checkpoint.folder));
    }
    world_.barrier("checkpoint");
    last_saved_ = step;
  }

 private:
  // Two pipes hold every stage twice: the copy of pipe 0 is saved.
  bool owns(const std::string& name) const {
    if (run_.lowered.num_pipes() == 1) return true;
    for (int stage = 0; stage < run_.lowered.num_stages(); ++stage)
      if (run_.lowered.placement.device_of(0, stage) == world_.rank() &&
          trainer_.holds(stage, name))
        return true;
    return false;
  }

  const TrainingRun& run_;
  Communicator& world_;
  Trainer& trainer_;
  RealFileSystem files_;
  std::optional<CheckpointFolder> folder_;
  std::int64_t last_saved_;
};

// Where to resume from; the same on every rank. "": a fresh start.
std::string checkpoint_to_load(const TrainingRun& run, Communicator& world) {
  char path[4096] = {};
  if (world.rank() == 0) {
    const CheckpointConfig& config = run.config.checkpoint;
    std::string found;
    if (config.load == "latest" && !config.folder.empty()) {
      if (const auto latest = find_latest(config.folder)) {
        for (const std::string& reason : latest->passed_over)
          run.on_note("passed over: " + reason);
        found = latest->folder;
      }
    } else if (config.load != "latest" && config.load != "none") {
      found = config.load;
      Checkpoint(found).verify();
    }
    SLUICE_CHECK(found.size() < sizeof path, "a path of {} bytes", found.size());
    std::memcpy(path, found.data(), found.size());
  }
  world.broadcast(0, std::as_writable_bytes(std::span(path)), "checkpoint to load");
  return path;
}

// The step it was saved after.
std::int64_t resume(const TrainingRun& run, const std::string& path, Trainer& trainer) {
  const Checkpoint checkpoint(path);
  for (Saved& saved : saved_tensors(trainer)) {
    const std::string name = stored_name(saved.name, run.config.model.tied_embeddings);
    const TensorSpec* spec = checkpoint.find(name);
    if (!spec)
      throw UserError(fmt::format("{} has no tensor '{}': it is of another model", path, name),
                      ExitCode::bad_data);
    if (spec->shape != saved.tensor.sizes().vec() || spec->dtype != dtype_of(saved.tensor))
      throw UserError(
          fmt::format("{}: '{}' is [{}] there and [{}] here: it is of another model", path, name,
                      fmt::join(spec->shape, ","), fmt::join(saved.tensor.sizes().vec(), ",")),
          ExitCode::bad_data);
    SLUICE_CHECK(saved.tensor.is_contiguous(), "'{}' is not contiguous", saved.name);
    checkpoint.read_rows(*spec, 0, num_rows(*spec), bytes_of(saved.tensor));
  }
  return checkpoint.manifest().info.step;
}

// One rank's figures of a step, gathered on rank 0.
struct RankFigures {
  double start = 0, end = 0, busy = 0;
  std::int64_t peak_bytes = 0;
};

std::vector<RankFigures> gather_figures(const StepResult& result, Communicator& world) {
  RankFigures mine;
  const auto& spans = result.executed.timeline.spans;
  if (!spans.empty()) {
    mine.start = spans.front().start;
    mine.end = spans.back().end;
  }
  mine.busy = result.executed.timeline.busy;
  mine.peak_bytes = result.executed.peak_stash_bytes;
  std::vector<RankFigures> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                   "figures");
  return all;
}

double bubble_of(const std::vector<RankFigures>& ranks) {
  double span = 0, ideal = 0;
  for (const RankFigures& rank : ranks) {
    span = std::max(span, rank.end - rank.start);
    ideal = std::max(ideal, rank.busy);
  }
  return span > 0 ? 1 - ideal / span : 0;
}

}  // namespace

ModelShape model_shape(const Config& config) {
  const ModelConfig& model = config.model;
  if (model.shape != "gpt2" && model.shape != "llama")
    throw user_error("model.shape is '{}': gpt2 and llama can be trained so far", model.shape);
  ModelShape shape;
  shape.family = model.shape == "llama" ? ModelFamily::llama : ModelFamily::gpt2;
  shape.layers = model.layers;
  shape.dim = model.dim;
  shape.heads = model.heads;
  shape.kv_heads = model.kv_heads;
  shape.ffn_dim = model.ffn_dim;
  shape.vocab_size = model.vocab_size;
  shape.positions = shape.family == ModelFamily::gpt2 ? model.positions : 0;
  shape.tied_embeddings = model.tied_embeddings;
  return shape;
}

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
  if (layers.rule == "list")
    options.layers_per_stage.assign(layers.list.begin(), layers.list.end());
  else if (layers.rule == "even")
    options.layers_per_stage = even_layers(config.model.layers, schedule.num_stages());
  else
    throw user_error("parallelism.layers_per_stage is '{}': even and a list are known so far",
                     layers.rule);
  options.level = recompute_level(config);
  options.dtype = config.training.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  options.seed = static_cast<std::uint64_t>(config.debug.seed);
  options.global_batch_size = config.training.global_batch_size;
  options.sequence_length = config.training.sequence_length;
  options.optimizer.kind =
      config.optimizer.name == "sgd" ? OptimizerKind::sgd : OptimizerKind::adamw;
  options.optimizer.beta1 = config.optimizer.beta1;
  options.optimizer.beta2 = config.optimizer.beta2;
  options.optimizer.epsilon = config.optimizer.eps;
  options.optimizer.weight_decay = config.optimizer.weight_decay;
  options.learning_rate = config.optimizer.lr;
  options.warmup_steps = config.lr_scheduler.warmup_steps;
  options.num_steps = config.training.steps;
  options.min_lr_ratio = config.lr_scheduler.min_lr_ratio;
  options.max_norm = config.training.max_norm;
  return options;
}

RunEnd run_training(const TrainingRun& run, Communicator& world) {
  using Clock = std::chrono::steady_clock;
  at::set_num_threads(run.threads_per_rank);
  const Config& config = run.config;
  const bool leads = world.rank() == 0;
  Trainer trainer(trainer_options(config, run.lowered), run.lowered, run.training, world);
  RunEnd end;
  if (const std::string path = checkpoint_to_load(run, world); !path.empty()) {
    end.last_step = resume(run, path, trainer);
    if (leads) run.on_note(fmt::format("resumed from step {} of {}", end.last_step, path));
  }
  Saver saver(run, world, trainer, end.last_step);
  RealFileSystem files;
  std::optional<MetricsLog> log;
  if (leads && !config.metrics.folder.empty())
    log.emplace(files, config.metrics.folder + "/metrics.jsonl", end.last_step + 1);

  const std::int64_t tokens =
      std::int64_t{config.training.global_batch_size} * config.training.sequence_length;
  for (std::int64_t number = end.last_step + 1; number <= config.training.steps; ++number) {
    const auto started = Clock::now();
    const StepResult result = trainer.step(number);
    const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
    const std::vector<RankFigures> ranks = gather_figures(result, world);
    end.last_step = number;
    end.devices = {result.executed.timeline};

    StepMetrics metrics;
    metrics.step = number;
    metrics.loss = result.loss;
    metrics.grad_norm = result.gradient_norm;
    metrics.lr = result.learning_rate;
    metrics.tokens = tokens;
    metrics.step_time_s = seconds;
    metrics.tps = static_cast<double>(tokens) / seconds / world.size();
    metrics.bubble = bubble_of(ranks);
    for (const RankFigures& rank : ranks)
      metrics.peak_stash_bytes.push_back(rank.peak_bytes);
    metrics.predicted_peak_stash_bytes = run.predicted_peak_bytes;
    const std::int64_t interval = config.validation.interval;
    if (run.held_out && interval > 0 && number % interval == 0) {
      const std::int64_t batches = std::clamp<std::int64_t>(
          run.held_out->num_samples() / config.training.global_batch_size, 1, 8);
      metrics.validation_loss = trainer.evaluate(*run.held_out, batches);
    }
    if (leads) {
      if (log) log->append(metrics);
      run.on_step(metrics);
    }
    // All ranks stop after the same step: rank 0's view counts.
    std::int64_t stop = run.stop && run.stop->load() ? 1 : 0;
    world.broadcast(0, std::as_writable_bytes(std::span(&stop, 1)), "stop");
    const bool due = config.checkpoint.interval > 0 && number % config.checkpoint.interval == 0;
    if (due || stop || number == config.training.steps) saver.save(number);
    if (stop && number < config.training.steps) {
      end.stopped = true;
      break;
    }
  }
  return end;
}

}  // namespace sluice
