#include "sluice/runtime/weights/saved_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "sluice/base/error.h"

namespace sluice {
namespace {

constexpr const char* kMaster = "/master";

bool is_float(Dtype dtype) { return dtype == Dtype::f32 || dtype == Dtype::bf16; }

}  // namespace

bool is_state(const std::string& name) { return name.find('/') != std::string::npos; }

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
  return std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                     [](const TensorSpec& tensor) { return is_state(tensor.name); });
}

bool begins_anew(const Checkpoint& checkpoint, const std::string& state, bool tied) {
  if (!has_states(checkpoint)) return true;
  return weight_of_master(state) && !checkpoint.find(stored_name(state, tied));
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
  if (is_state(name) || wanted.dtype != Dtype::f32 || spec->dtype != Dtype::bf16) return *spec;
  const TensorSpec* master = checkpoint.find(name + kMaster);
  return master && master->shape == wanted.shape ? *master : *spec;
}

void check_none_left(const Checkpoint& checkpoint, const std::vector<std::string>& wanted,
                     bool tied) {
  std::set<std::string> names;
  for (const std::string& name : wanted)
    names.insert(stored_name(name, tied));
  for (const TensorSpec& tensor : checkpoint.tensors())
    if (!is_state(tensor.name) && !names.contains(tensor.name))
      throw UserError(fmt::format("{} has a tensor '{}' that the model here has not: it is of "
                                  "another model",
                                  checkpoint.folder(), tensor.name),
                      ExitCode::bad_data);
}

}  // namespace sluice
