#include "sluice/runtime/checkpointing.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string_view>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/run/batch_planner.h"
#include "sluice/runtime/files/run_id.h"
#include "sluice/runtime/weights/saved_model.h"

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

// A part of a whole weight, or of a state of one, as this rank holds it.
struct Held {
  TensorPiece piece;
  at::Tensor tensor;
};

Box box_of(const Shard& shard) {
  Box box{{0, shard.whole[0]}, {0, shard.whole.size() > 1 ? shard.whole[1] : 1}};
  (shard.dim == 0 ? box.rows : box.columns) = {shard.range.begin, shard.range.end};
  return box;
}

Held held(const Parameter& parameter) {
  return {
      {{parameter.name, dtype_of(parameter.value), parameter.shard.whole}, box_of(parameter.shard)},
      parameter.value};
}

// The own rows of a weight, or of a state of it.
Held held_rows(TensorSpec tensor, const Shard& shard, const RowRange& own, at::Tensor rows) {
  Box box = box_of(shard);
  box.rows = {box.rows.begin + own.begin, box.rows.begin + own.end};
  return {{std::move(tensor), box}, std::move(rows)};
}

// All that this rank keeps of its weights.
std::vector<Held> held_weights(Trainer& trainer) {
  std::vector<Held> out;
  const std::vector<Parameter*> parameters = trainer.parameters();
  for (std::size_t n = 0; n < parameters.size(); ++n) {
    const Weight& weight = trainer.weights()[n];
    out.push_back(held(*parameters[n]));
    if (weight.sharded_rows > 0)
      out.back() =
          held_rows(out.back().piece.tensor, parameters[n]->shard, weight.own, weight.own_value());
  }
  return out;
}

Held held_as(const Parameter& parameter, std::string name, at::Tensor value) {
  Held out = held(parameter);
  out.piece.tensor.name = std::move(name);
  out.tensor = std::move(value);
  return out;
}

std::vector<Held> held_states(Trainer& trainer) {
  std::map<std::string_view, const Shard*> shards;
  for (const Parameter* parameter : trainer.parameters())
    shards[parameter->name] = &parameter->shard;
  std::vector<Held> out;
  for (const Optimizer::State& state : trainer.optimizer().states()) {
    const Shard& shard = *shards.at(state.weight);
    out.push_back(held_rows({state.name, dtype_of(state.tensor), shard.whole}, shard, state.own,
                            state.tensor));
  }
  return out;
}

}  // namespace

Saver::Saver(const RunPlan& plan, Communicator& world, Trainer& trainer, Resumed resumed,
             const Note& note)
    : plan_(plan), world_(world), trainer_(trainer), last_saved_(resumed.step) {
  const Config& config = plan.config;
  if (world.rank() == 0 && resumed.found && plan.planner)
    if (const std::string changes = changed_planner(
            Checkpoint(resumed.found->folder).manifest().info.state, plan.planner->identity);
        !changes.empty())
      note("resumed with other costs: batches are planned by " + changes);
  if (world.rank() == 0)
    run_ = run_id(config.checkpoint.folder, config.checkpoint.load, last_saved_);
  if (config.checkpoint.folder.empty()) return;
  const CheckpointFolderOptions options{.folder = config.checkpoint.folder,
                                        .rank = world.rank(),
                                        .num_ranks = world.size(),
                                        .start_step = resumed.step,
                                        .keep_latest_k = config.checkpoint.keep_latest_k};
  if (world.rank() == 0) {
    if (resumed.lock && resumed.found)
      for (const std::string& line : set_aside(files_, options.folder, *resumed.found))
        note(line);
    folder_.emplace(files_, options, std::move(resumed.lock));
    const std::string& load = config.checkpoint.load;
    copy_model_files(files_, config.data.tokenizer, load == "latest" || load == "none" ? "" : load,
                     config.checkpoint.folder);
  }
  world.barrier("checkpoint folder");
  if (world.rank() != 0) folder_.emplace(files_, options);
}

void Saver::save(std::int64_t step, const Note& note) {
  if (!folder_ || step == last_saved_) return;
  std::vector<TensorPiece> pieces;
  std::vector<at::Tensor> tensors;
  const bool tied = plan_.config.model.tied_embeddings;
  const auto add = [&](const Held& part) {
    const std::string& name = part.piece.tensor.name;
    if (stored_name(name, tied) != name || part.piece.box.empty()) return;
    tensors.push_back(part.tensor.contiguous().cpu());
    pieces.push_back(part.piece);
  };
  const std::set<std::string> own = own_weights();
  if (plan_.sharded() ? trainer_.mesh().replica() == 0 : trainer_.mesh().place().data == 0)
    for (const Held& weight : held_weights(trainer_))
      if (own.contains(weight.piece.tensor.name)) add(weight);
  if (trainer_.older() && trainer_.mesh().place().data == 0)
    for (const OlderWeights::Entry& entry : trainer_.older()->entries())
      if (own.contains(entry.parameter->name))
        add(held_as(*entry.parameter, entry.name, entry.value));
  if (trainer_.mesh().replica() == 0)
    for (const Held& state : held_states(trainer_)) {
      const std::string& name = state.piece.tensor.name;
      if (own.contains(name.substr(0, name.find('/')))) add(state);
    }
  if (world_.rank() == 0) folder_->check_lock();
  world_.barrier("checkpoint folder");
  folder_->write_shard(step, pieces, [&](std::size_t index) {
    return std::span<const std::byte>(bytes_of(tensors[index]));
  });
  world_.barrier("checkpoint shards");
  if (world_.rank() == 0) {
    CheckpointInfo info;
    info.step = step;
    const MeshShape& mesh = trainer_.mesh().shape();
    info.mesh = {.data = mesh.data(), .pipeline = mesh.pipeline, .tensor = mesh.tensor};
    info.schedule = plan_.schedule.name;
    info.config = config_text(plan_.config);
    info.state = run_state(run_, plan_.config.checkpoint.folder, trainer_.last_norm(),
                           plan_.planner ? plan_.planner->identity : "");
    folder_->commit(info);
    note(fmt::format("saved step {} in {}", step, plan_.config.checkpoint.folder));
  }
  world_.barrier("checkpoint");
  last_saved_ = step;
}

// What several ranks of a pipeline hold alike, the first of them saves: of tensor ranks where they
// do not divide a weight, and where two pipes hold every stage, those of pipe 0.
std::set<std::string> Saver::own_weights() const {
  std::set<std::string> own;
  const int device = trainer_.mesh().place().pipeline;
  for (const Parameter* parameter : trainer_.parameters()) {
    if (!parameter->shard.counted) continue;
    for (int stage = 0; stage < plan_.schedule.num_stages(); ++stage)
      if (plan_.schedule.placement.device_of(0, stage) == device &&
          trainer_.holds(stage, parameter->name))
        own.insert(parameter->name);
  }
  return own;
}

namespace {

// Whether it had to be converted.
bool read_part(const Checkpoint& checkpoint, const Held& part, bool tied) {
  SLUICE_CHECK(part.tensor.is_contiguous(), "'{}' is not contiguous", part.piece.tensor.name);
  const TensorSpec& stored = find_tensor(checkpoint, part.piece.tensor, tied);
  const bool converts = stored.dtype != part.piece.tensor.dtype;
  const at::ScalarType saved = stored.dtype == Dtype::bf16 ? at::kBFloat16 : at::kFloat;
  const bool direct = !converts && part.tensor.is_cpu();
  const at::Tensor read = direct ? part.tensor : at::empty(part.tensor.sizes(), saved);
  checkpoint.read_box(stored, part.piece.box, bytes_of(read));
  if (!direct) part.tensor.copy_(read);
  return converts;
}

// How many updates back a checkpoint has weights of.
int num_older_in(const Checkpoint& checkpoint) {
  int most = 0;
  for (const TensorSpec& tensor : checkpoint.tensors())
    if (const std::size_t at = tensor.name.find(kOlderMark); at != std::string::npos)
      most = std::max(most, static_cast<int>(
                                parse_int(tensor.name.substr(at + kOlderMark.size())).value_or(0)));
  return most;
}

// Why forwards of the next steps cannot be computed again: the run needs the weights so many
// updates back.
std::string unknown_text(const Checkpoint& checkpoint, const Trainer& trainer, int updates) {
  const int most = num_older_in(checkpoint);
  const auto before = [](int count) {
    return "before the last " + (count == 1 ? std::string("update") : counted(count, "update"));
  };
  const std::string needs = most < updates ? "the weights " + before(updates) : "predicted weights";
  const std::string holds = most == 0 || most >= updates ? "none" : "those " + before(most);
  return fmt::format(
      "{} begins steps with {}, and the checkpoint holds {}, so this run begins them with the "
      "weights of the checkpoint",
      trainer.schedule_name(), needs, holds);
}

// Puts the weights of some updates ago in place. Whether the checkpoint has all of them.
bool read_older(const Checkpoint& checkpoint, Trainer& trainer, int updates_ago, bool predicted,
                bool tied) {
  for (int ago = 1; ago <= updates_ago; ++ago)
    for (const Parameter* parameter : trainer.parameters())
      if (!checkpoint.find(stored_name(older_name(parameter->name, ago), tied))) return false;
  for (const Parameter* parameter : trainer.parameters())
    if (predicted && !checkpoint.find(stored_name(predicted_name(parameter->name), tied)))
      return false;
  for (const Parameter* parameter : trainer.parameters())
    read_part(checkpoint,
              held_as(*parameter, older_name(parameter->name, updates_ago), parameter->value),
              tied);
  return true;
}

// Masters begin as the weights in the checkpoint, whatever their type; moments are zero already.
void begin_state(const Checkpoint& checkpoint, Held state, bool tied) {
  const std::optional<std::string> weight = weight_of_master(state.piece.tensor.name);
  if (!weight) return;
  state.piece.tensor.name = *weight;
  read_part(checkpoint, state, tied);
}

// The path of what rank 0 found, on every rank; "": a fresh start.
std::string share_path(const std::optional<FoundCheckpoint>& found, Communicator& world) {
  char path[4096] = {};
  if (found) {
    SLUICE_CHECK(found->folder.size() < sizeof path, "a path of {} bytes", found->folder.size());
    std::memcpy(path, found->folder.data(), found->folder.size());
  }
  world.broadcast(0, std::as_writable_bytes(std::span(path)), "checkpoint to load");
  return path;
}

// The names of all ranks' tensors, on rank 0; some may come twice.
std::vector<std::string> all_names(Communicator& world, const std::vector<Held>& held) {
  std::string mine;
  for (const Held& part : held)
    mine += part.piece.tensor.name + '\n';
  std::vector<std::string> names;
  for (const std::vector<std::byte>& theirs :
       world.gather(0, std::as_bytes(std::span(mine)), "names of tensors"))
    for (const std::string_view name :
         split(std::string_view(reinterpret_cast<const char*>(theirs.data()), theirs.size()), '\n'))
      if (!name.empty()) names.emplace_back(name);
  return names;
}

}  // namespace

namespace {

const char* type_name(Dtype dtype) { return dtype == Dtype::bf16 ? "bfloat16" : "float32"; }

// "; its ... are converted to ...": for the line that says where the run goes on from. `weight` is
// one of this run's.
std::string conversion_text(const Checkpoint& checkpoint, const TensorSpec& weight, bool states,
                            bool tied) {
  std::string text;
  const TensorSpec& stored = *checkpoint.find(stored_name(weight.name, tied));
  if (stored.dtype != weight.dtype)
    text = fmt::format(
        "; its {} weights are converted to {}{}", type_name(stored.dtype), type_name(weight.dtype),
        find_tensor(checkpoint, weight, tied) == stored ? "" : ", from their float32 masters");
  if (states) text += "; its optimizer states are converted to optimizer.state_dtype";
  return text;
}

}  // namespace

Resumed load_checkpoint(const Config& config, int rollback, Communicator& world, Trainer& trainer,
                        const Note& note) {
  Resumed resumed;
  if (world.rank() == 0) {
    // Until the lock is held, another run may be removing what is read here.
    if (!config.checkpoint.folder.empty() && is_there(config.checkpoint.folder))
      resumed.lock.emplace(config.checkpoint.folder);
    resumed.found = find_checkpoint(config.checkpoint, rollback);
  }
  const std::string path = share_path(resumed.found, world);
  if (path.empty()) return resumed;
  const Checkpoint checkpoint(path);
  check_same_model(checkpoint, config);
  const bool tied = config.model.tied_embeddings;
  const std::vector<Held> weights = held_weights(trainer), states = held_states(trainer);
  const std::vector<std::string> wanted = all_names(world, weights);
  const std::vector<std::string> wanted_states = all_names(world, states);
  if (world.rank() == 0) check_none_left(checkpoint, wanted, tied);
  for (const Held& weight : weights)
    read_part(checkpoint, weight, tied);
  const bool other = by_other_optimizer(checkpoint, config);
  resumed.step = checkpoint.manifest().info.step;
  const bool begins = !states.empty() && !has_states(checkpoint) && (resumed.step == 0 || !other);
  bool converted = false;
  for (const Held& state : states)
    if (begins_anew(checkpoint, state.piece.tensor.name, config))
      begin_state(checkpoint, state, tied);
    else if (read_part(checkpoint, state, tied))
      converted = true;
  trainer.set_last_norm(gradient_norm_of(checkpoint.manifest().info.state));
  int unknown = 0;  // updates back
  const auto older = [&](int updates_ago) {
    const bool known = read_older(checkpoint, trainer, updates_ago, trainer.predicts(), tied);
    if (!known) unknown = updates_ago;
    return known;
  };
  const auto predicted = [&](const Parameter& parameter) {
    read_part(checkpoint, held_as(parameter, predicted_name(parameter.name), parameter.value),
              tied);
  };
  trainer.go_on_from(resumed.step, {older, predicted});
  if (world.rank() != 0) return resumed;
  const std::string conversion = conversion_text(
      checkpoint, held(*trainer.parameters().front()).piece.tensor, converted, tied);
  if (begins) {
    note(fmt::format(
        "started from the weights of {}: it holds no optimizer states, so they begin anew{}", path,
        conversion));
    return resumed;
  }
  note(fmt::format("resumed from step {} of {}{}", resumed.step, path, conversion));
  if (const std::string change = changed_optimizer(checkpoint, wanted_states, config);
      !change.empty())
    note(change);
  if (unknown > 0) note(unknown_text(checkpoint, trainer, unknown));
  if (const std::string settings = changed_settings(checkpoint, config); !settings.empty())
    note("resumed with other settings: " + settings);
  if (resumed.step >= config.training.steps)
    note(fmt::format("nothing is left to do: training.steps is {}; raise it to train on",
                     config.training.steps));
  return resumed;
}

void load_weights(const Checkpoint& checkpoint, const std::vector<Parameter*>& parameters,
                  bool tied) {
  for (const Parameter* parameter : parameters)
    read_part(checkpoint, held(*parameter), tied);
}

}  // namespace sluice
