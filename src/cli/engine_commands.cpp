// The commands that need the machine side.
#include "cli/commands.h"
#include "runtime/config/schema.h"

namespace sluice::cli {

void add_engine_commands(CLI::App& app, ExitCode& exit_code) {
  add_train(app, exit_code);
  add_generate(app);
  add_evaluate(app);
  add_inspect(app);
  add_import(app);
  add_export(app);
  add_profile(app, exit_code);
  add_partition(app);
}

std::vector<std::string> config_flags() {
  std::vector<std::string> flags;
  for (const ConfigKey& key : config_schema())
    flags.push_back("--" + key.full_name() + "=");
  return flags;
}

}  // namespace sluice::cli
