#include "sluice/cli/run_config.h"

#include "sluice/config/schema.h"
#include "sluice/run/launch.h"
#include "sluice/runtime/weights/saved_model.h"

namespace sluice::cli {

LoadedConfig load_run_config(const std::string& path, std::span<const std::string> flags) {
  LoadedConfig loaded = load_config(path, flags);
  take_model_from_checkpoint(loaded);
  return loaded;
}

Config with_chosen_backend(const LoadedConfig& loaded) {
  Config config = loaded.values;
  config.comm.backend = chosen_backend(config);
  return config;
}

std::vector<std::string> config_flags() {
  std::vector<std::string> flags;
  for (const ConfigKey& key : config_schema())
    flags.push_back("--" + key.full_name() + "=");
  return flags;
}

}  // namespace sluice::cli
