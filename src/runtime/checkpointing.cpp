#include "runtime/checkpointing.h"

#include <fmt/ranges.h>

#include <cstring>
#include <string_view>

#include "base/error.h"

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

}  // namespace

Saver::Saver(const Config& config, const Schedule& schedule, Communicator& world, Trainer& trainer,
             std::int64_t start_step)
    : config_(config),
      schedule_(schedule),
      world_(world),
      trainer_(trainer),
      last_saved_(start_step) {
  if (config.checkpoint.folder.empty()) return;
  const CheckpointFolderOptions options{.folder = config.checkpoint.folder,
                                        .rank = world.rank(),
                                        .num_ranks = world.size(),
                                        .start_step = start_step,
                                        .keep_latest_k = config.checkpoint.keep_latest_k};
  if (world.rank() == 0) folder_.emplace(files_, options);
  world.barrier("checkpoint folder");
  if (world.rank() != 0) folder_.emplace(files_, options);
}

void Saver::save(std::int64_t step, const Note& note) {
  if (!folder_ || step == last_saved_) return;
  std::vector<TensorPiece> pieces;
  std::vector<at::Tensor> tensors;
  const bool tied = config_.model.tied_embeddings;
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
    info.schedule = schedule_.name;
    info.config = config_text(config_);
    folder_->commit(info);
    note(fmt::format("saved step {} in {}", step, config_.checkpoint.folder));
  }
  world_.barrier("checkpoint");
  last_saved_ = step;
}

// Two pipes hold every stage twice: the copy of pipe 0 is saved.
bool Saver::owns(const std::string& name) const {
  if (schedule_.num_pipes() == 1) return true;
  for (int stage = 0; stage < schedule_.num_stages(); ++stage)
    if (schedule_.placement.device_of(0, stage) == world_.rank() && trainer_.holds(stage, name))
      return true;
  return false;
}

std::string find_checkpoint(const CheckpointConfig& config, const Note& note) {
  if (config.load == "none" || (config.load == "latest" && config.folder.empty())) return "";
  if (config.load != "latest") return checkpoint_at(config.load);
  const auto latest = find_latest(config.folder);
  if (!latest) return "";
  for (const std::string& reason : latest->passed_over)
    note("passed over: " + reason);
  return latest->folder;
}

const TensorSpec& find_tensor(const Checkpoint& checkpoint, const TensorSpec& wanted, bool tied) {
  const std::string name = stored_name(wanted.name, tied);
  const TensorSpec* spec = checkpoint.find(name);
  if (!spec)
    throw UserError(
        fmt::format("{} has no tensor '{}': it is of another model", checkpoint.folder(), name),
        ExitCode::bad_data);
  if (spec->shape != wanted.shape || spec->dtype != wanted.dtype)
    throw UserError(
        fmt::format("{}: '{}' is {} [{}] there and {} [{}] here: it is of another model",
                    checkpoint.folder(), name, dtype_name(spec->dtype), fmt::join(spec->shape, ","),
                    dtype_name(wanted.dtype), fmt::join(wanted.shape, ",")),
        ExitCode::bad_data);
  return *spec;
}

namespace {

void read_tensors(const Checkpoint& checkpoint, const std::vector<Saved>& wanted, bool tied) {
  for (const Saved& saved : wanted) {
    const TensorSpec& spec = find_tensor(
        checkpoint,
        {.name = saved.name, .dtype = dtype_of(saved.tensor), .shape = saved.tensor.sizes().vec()},
        tied);
    SLUICE_CHECK(saved.tensor.is_contiguous(), "'{}' is not contiguous", saved.name);
    checkpoint.read_box(spec, whole_box(spec), bytes_of(saved.tensor));
  }
}

// Where to resume from; the same on every rank. "": a fresh start.
std::string checkpoint_to_load(const CheckpointConfig& config, Communicator& world,
                               const Note& note) {
  char path[4096] = {};
  if (world.rank() == 0) {
    const std::string found = find_checkpoint(config, note);
    SLUICE_CHECK(found.size() < sizeof path, "a path of {} bytes", found.size());
    std::memcpy(path, found.data(), found.size());
  }
  world.broadcast(0, std::as_writable_bytes(std::span(path)), "checkpoint to load");
  return path;
}

}  // namespace

std::int64_t load_checkpoint(const Config& config, Communicator& world, Trainer& trainer,
                             const Note& note) {
  const std::string path = checkpoint_to_load(config.checkpoint, world, note);
  if (path.empty()) return 0;
  const Checkpoint checkpoint(path);
  read_tensors(checkpoint, saved_tensors(trainer), config.model.tied_embeddings);
  const std::int64_t step = checkpoint.manifest().info.step;
  if (world.rank() == 0) note(fmt::format("resumed from step {} of {}", step, path));
  return step;
}

void load_weights(const Checkpoint& checkpoint, const std::vector<Parameter*>& parameters,
                  bool tied) {
  std::vector<Saved> wanted;
  for (const Parameter* parameter : parameters)
    wanted.push_back({parameter->name, parameter->value});
  read_tensors(checkpoint, wanted, tied);
}

}  // namespace sluice
