#include "runtime/weights/saved_model.h"

#include <filesystem>
#include <vector>

#include "base/text.h"
#include "runtime/config/resolve.h"
#include "runtime/config/schema.h"
#include "runtime/files/checkpoint_folder.h"

namespace sluice {
namespace {

constexpr const char* kMeaningOfWeights[] = {
    "model.shape",      "model.layers",    "model.dim",
    "model.heads",      "model.kv_heads",  "model.ffn_dim",
    "model.vocab_size", "model.positions", "model.tied_embeddings"};

// With what the keys above leave to be worked out; whoever saved it may have left it so.
Config with_whole_model(Config config) {
  ModelConfig& model = config.model;
  model.kv_heads = kv_heads_of(model);
  model.ffn_dim = ffn_dim_of(model);
  if (model.shape == "llama")
    model.positions = 0;  // no weights of it
  else if (model.positions == 0)
    model.positions = config.training.sequence_length;
  return config;
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

void check_same_model(const Checkpoint& checkpoint, const Config& config) {
  const Config there = with_whole_model(config_of(checkpoint)), here = with_whole_model(config);
  std::vector<std::string> differences;
  for (const char* name : kMeaningOfWeights) {
    const ConfigKey& key = *find_config_key(name);
    const ConfigValue saved = key.get(there), asked = key.get(here);
    if (saved != asked)
      differences.push_back(
          fmt::format("{} is {} there and {} here", name, toml_value(saved), toml_value(asked)));
  }
  if (differences.empty()) return;
  throw UserError(
      fmt::format("{} is of another model: {}; set {} back, or name another {}",
                  checkpoint.folder(), join(differences, ", "),
                  differences.size() == 1 ? "it" : "them",
                  config.checkpoint.load == "latest" ? "checkpoint.folder" : "checkpoint.load"),
      ExitCode::bad_data);
}

std::string tokenizer_of(const std::string& folder) {
  const std::filesystem::path own = std::filesystem::path(folder + "/").parent_path();
  std::vector<std::string> places = {own.string()};
  if (parse_step_folder(own.filename().string())) places.push_back(parent_folder(own.string()));
  for (const std::string& place : places)
    if (const std::string path = place + "/" + kTokenizerName; is_there(path)) return path;
  return "";
}

void copy_tokenizer(FileSystem& files, const std::string& path, const std::string& folder) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
  write_file_atomically(files, folder + "/" + kTokenizerName, InputFile(path).read_text(kMaxBytes));
}

}  // namespace sluice
