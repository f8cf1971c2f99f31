// The commands that need the machine side.
#include "sluice/cli/commands.h"

namespace sluice::cli {

void add_engine_commands(CLI::App& app, ExitCode& exit_code) {
  add_generate(app);
  add_evaluate(app);
  add_inspect(app);
  add_import(app);
  add_export(app);
  add_profile(app, exit_code);
}

}  // namespace sluice::cli
