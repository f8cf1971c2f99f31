#include "sluice/runtime/weights/saved_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/runtime/weights/saved_model.h"

namespace sluice {
namespace {

constexpr const char* kMaster = "/master";

bool is_float(Dtype dtype) { return dtype == Dtype::f32 || dtype == Dtype::bf16; }

}  // namespace

std::optional<std::string> weight_of_master(const std::string& name) {
  if (!name.ends_with(kMaster)) return std::nullopt;
  return name.substr(0, name.size() - std::strlen(kMaster));
}

std::string stored_name(const std::string& name, bool tied) {
  constexpr std::string_view kHead = "head.weight";
  return tied && name.starts_with(kHead) ? "embedding.weight" + name.substr(kHead.size()) : name;
}

std::optional<FoundCheckpoint> find_checkpoint(const CheckpointConfig& config, int rollback) {
  if (rollback > 0 && (config.load != "latest" || config.folder.empty()))
    throw user_error(
        "`rollback` is {}: it goes back in checkpoint.folder and needs checkpoint.load = latest",
        rollback);
  if (config.load == "none" || (config.load == "latest" && config.folder.empty())) return {};
  if (config.load == "latest") return find_latest(config.folder, {.rollback = rollback});
  return FoundCheckpoint{.folder = checkpoint_at(config.load)};
}

bool has_states(const Checkpoint& checkpoint) {
  return std::any_of(
      checkpoint.tensors().begin(), checkpoint.tensors().end(),
      [](const TensorSpec& tensor) { return role_of(tensor.name) == TensorRole::state; });
}

bool by_other_optimizer(const Checkpoint& checkpoint, const Config& config) {
  return config_of(checkpoint).optimizer.name != config.optimizer.name;
}

bool begins_anew(const Checkpoint& checkpoint, const std::string& state, const Config& config) {
  if (checkpoint.find(stored_name(state, config.model.tied_embeddings))) return false;
  return weight_of_master(state) || !has_states(checkpoint) ||
         by_other_optimizer(checkpoint, config);
}

namespace {

// "first_moment of 38 weights, second_moment of 38 weights": states by name, without masters.
std::string by_state(const std::set<std::string>& names) {
  std::map<std::string, int> counts;
  for (const std::string& name : names)
    if (!weight_of_master(name)) ++counts[name.substr(name.find('/') + 1)];
  std::vector<std::string> parts;
  for (const auto& [state, count] : counts)
    parts.push_back(fmt::format("{} of {}", state, counted(count, "weight")));
  return join(parts, ", ");
}

}  // namespace

std::string changed_optimizer(const Checkpoint& checkpoint, const std::vector<std::string>& states,
                              const Config& config) {
  const OptimizerKind before = config_of(checkpoint).optimizer.name, now = config.optimizer.name;
  if (before == now) return "";
  std::set<std::string> wanted, fresh, unused;
  for (const std::string& state : states) {
    const std::string name = stored_name(state, config.model.tied_embeddings);
    wanted.insert(name);
    if (!checkpoint.find(name)) fresh.insert(name);
  }
  for (const TensorSpec& tensor : checkpoint.tensors())
    if (role_of(tensor.name) == TensorRole::state && !wanted.contains(tensor.name))
      unused.insert(tensor.name);
  std::vector<std::string> parts;
  if (const std::string text = by_state(fresh); !text.empty())
    parts.push_back("set to zero: " + text);
  if (const std::string text = by_state(unused); !text.empty()) parts.push_back("dropped: " + text);
  return fmt::format("optimizer.name was {} and is {}: {}", before, now,
                     parts.empty() ? fmt::format("{} goes on with the states of {}", now, before)
                                   : join(parts, "; "));
}

const TensorSpec& find_tensor(const Checkpoint& checkpoint, const TensorSpec& wanted, bool tied) {
  const std::string name = stored_name(wanted.name, tied);
  const TensorSpec* spec = checkpoint.find(name);
  if (!spec)
    throw UserError(
        fmt::format("{} has no tensor '{}': it is of another model", checkpoint.folder(), name),
        ExitCode::bad_data);
  if (spec->shape != wanted.shape || !is_float(spec->dtype))
    throw UserError(
        fmt::format("{}: '{}' is {} [{}] there and {} [{}] here: it is of another model",
                    checkpoint.folder(), name, dtype_name(spec->dtype), fmt::join(spec->shape, ","),
                    dtype_name(wanted.dtype), fmt::join(wanted.shape, ",")),
        ExitCode::bad_data);
  if (role_of(name) != TensorRole::weight || wanted.dtype != Dtype::f32 ||
      spec->dtype != Dtype::bf16)
    return *spec;
  const TensorSpec* master = checkpoint.find(name + kMaster);
  return master && master->shape == wanted.shape ? *master : *spec;
}

void check_none_left(const Checkpoint& checkpoint, const std::vector<std::string>& wanted,
                     bool tied) {
  std::set<std::string> names;
  for (const std::string& name : wanted)
    names.insert(stored_name(name, tied));
  for (const TensorSpec& tensor : checkpoint.tensors())
    if (role_of(tensor.name) == TensorRole::weight && !names.contains(tensor.name))
      throw UserError(fmt::format("{} has a tensor '{}' that the model here has not: it is of "
                                  "another model",
                                  checkpoint.folder(), tensor.name),
                      ExitCode::bad_data);
}

}  // namespace sluice
