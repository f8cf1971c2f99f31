// One function per subcommand: adds itself to the command line; its callback does the work and
// leaves the exit code in `exit_code`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "sluice/base/error.h"

namespace sluice::cli {

void add_schedule(CLI::App& app, ExitCode& exit_code);
void add_check(CLI::App& app, ExitCode& exit_code);
void add_simulate(CLI::App& app, ExitCode& exit_code);
void add_compare(CLI::App& app, ExitCode& exit_code);
void add_data(CLI::App& app, ExitCode& exit_code);
void add_partition(CLI::App& app);
void add_batch(CLI::App& app);
void add_train(CLI::App& app, ExitCode& exit_code);
// help [COMMAND] and completion bash|zsh, from what `app` holds when they run.
void add_help(CLI::App& app);
void add_completion(CLI::App& app);

// All of the following; the one of a program without torch says how to get that.
void add_engine_commands(CLI::App& app, ExitCode& exit_code);
void add_generate(CLI::App& app);
void add_import(CLI::App& app);
void add_export(CLI::App& app);
void add_evaluate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_profile(CLI::App& app, ExitCode& exit_code);

}  // namespace sluice::cli
