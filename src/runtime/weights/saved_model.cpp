#include "sluice/runtime/weights/saved_model.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <string_view>
#include <vector>

#include "sluice/base/text.h"
#include "sluice/config/resolve.h"
#include "sluice/config/schema.h"
#include "sluice/runtime/files/checkpoint_folder.h"

namespace sluice {
namespace {

constexpr std::uint64_t kMaxCopiedBytes = std::uint64_t{1} << 30;

bool has_rotary_positions(const ModelConfig& model) { return model.shape == ModelFamily::llama; }

// Whether two models that differ in the key are different models.
bool describes(const ConfigKey& key, const ModelConfig& model) {
  if (key.section != "model" || key.name == "dropout") return false;
  if (key.name == "positions") return !has_rotary_positions(model);
  if (key.name.starts_with("rope_")) return has_rotary_positions(model);
  return true;
}

Config with_whole_model(Config config) {
  config.model = resolve_model(config.model, config.training.sequence_length);
  return config;
}

// `origins` as in LoadedConfig.
void check_same_model(const Checkpoint& checkpoint, const Config& config,
                      const std::map<std::string, std::string>& origins) {
  const Config there = with_whole_model(config_of(checkpoint)), here = with_whole_model(config);
  std::vector<std::string> differences;
  for (const ConfigKey& key : config_schema()) {
    const ConfigValue saved = key.get(there), asked = key.get(here);
    if (saved == asked || !describes(key, there.model)) continue;
    const std::string name = key.full_name();
    const auto origin = origins.find(name);
    differences.push_back(
        fmt::format("{} is {} there and {} here{}", name, toml_value(saved), toml_value(asked),
                    origin == origins.end() ? "" : fmt::format(" ({})", origin->second)));
  }
  if (differences.empty()) return;
  throw UserError(
      fmt::format("{} is of another model: {}; leave {} out to take the checkpoint's, or name "
                  "another {}",
                  checkpoint.folder(), join(differences, ", "),
                  differences.size() == 1 ? "the key" : "these keys",
                  config.checkpoint.load == "latest" ? "checkpoint.folder" : "checkpoint.load"),
      ExitCode::bad_data);
}

// The checkpoint that a run would load, as far as manifests tell; "" for a fresh start.
std::string checkpoint_by_manifest(const CheckpointConfig& config) {
  if (config.load == "none" || (config.load == "latest" && config.folder.empty())) return "";
  if (config.load != "latest") return checkpoint_at(config.load, Trust::manifest);
  const auto latest = find_latest(config.folder, {.trust = Trust::manifest});
  return latest ? latest->folder : "";
}

}  // namespace

Config config_of(const Checkpoint& checkpoint) {
  try {
    return load_config_text(checkpoint.manifest().info.config,
                            fmt::format("the configuration of {}", checkpoint.folder()), {})
        .values;
  } catch (const UserError& error) {
    throw UserError(error.what(), ExitCode::bad_data);
  }
}

void take_model_from_checkpoint(LoadedConfig& config) {
  const std::string folder = checkpoint_by_manifest(config.values.checkpoint);
  if (folder.empty()) return;
  const Checkpoint checkpoint(folder);
  const Config there = with_whole_model(config_of(checkpoint));
  Config& here = config.values;
  for (const ConfigKey& key : config_schema()) {
    if (key.section != "model" || key.name == "dropout") continue;
    if (!config.origins.try_emplace(key.full_name(), "from checkpoint " + folder).second) continue;
    key.set(here, key.get(there));
    // Rotary positions have no end: longer sequences need nothing of the checkpoint.
    if (key.name == "positions" && has_rotary_positions(there.model))
      here.model.positions = std::max(here.model.positions, here.training.sequence_length);
  }
  check_same_model(checkpoint, here, config.origins);
}

void check_same_model(const Checkpoint& checkpoint, const Config& config) {
  check_same_model(checkpoint, config, {});
}

std::string changed_settings(const Checkpoint& checkpoint, const Config& config) {
  static constexpr std::string_view kLeftOut[] = {"checkpoint", "comm", "generate", "metrics"};
  const Config there = config_of(checkpoint);
  std::vector<std::string> changes;
  for (const ConfigKey& key : config_schema()) {
    const ConfigValue before = key.get(there), now = key.get(config);
    if (before != now && std::ranges::find(kLeftOut, key.section) == std::end(kLeftOut))
      changes.push_back(
          fmt::format("{} {} -> {}", key.full_name(), toml_value(before), toml_value(now)));
  }
  return join(changes, ", ");
}

std::string file_beside(const std::string& folder, const char* name) {
  const std::filesystem::path own = std::filesystem::path(folder + "/").parent_path();
  std::vector<std::string> places = {own.string()};
  if (parse_step_folder(own.filename().string())) places.push_back(parent_folder(own.string()));
  for (const std::string& place : places)
    if (const std::string path = place + "/" + name; is_there(path)) return path;
  return "";
}

void copy_file(FileSystem& files, const std::string& path, const std::string& folder,
               const std::string& name) {
  write_file_atomically(files, folder + "/" + name, InputFile(path).read_text(kMaxCopiedBytes));
}

void copy_model_files(FileSystem& files, const std::string& tokenizer, const std::string& loaded,
                      const std::string& folder) {
  const std::string loaded_tokenizer = loaded.empty() ? "" : tokenizer_of(loaded);
  const std::string& used = tokenizer.empty() ? loaded_tokenizer : tokenizer;
  const bool same_tokenizer =
      used == loaded_tokenizer ||
      (!loaded_tokenizer.empty() && InputFile(used).read_text(kMaxCopiedBytes) ==
                                        InputFile(loaded_tokenizer).read_text(kMaxCopiedBytes));
  if (!used.empty()) copy_file(files, used, folder, kTokenizerName);
  for (const char* name : kTokenizerFiles) {
    if (name == kTokenizerName) continue;
    // A tokenizer of another name may lie among files of other models.
    const std::string beside = same_tokenizer && !loaded.empty() ? file_beside(loaded, name)
                               : std::filesystem::path(used).filename() == kTokenizerName
                                   ? parent_folder(used) + "/" + name
                                   : "";
    if (!beside.empty() && is_there(beside)) copy_file(files, beside, folder, name);
  }
  for (const char* name : {kGenerationConfigName, kTokenIdsName})
    if (same_tokenizer && !loaded.empty())
      if (const std::string path = file_beside(loaded, name); !path.empty())
        copy_file(files, path, folder, name);
}

}  // namespace sluice
