// sluice train CONFIG: what can be answered without torch is answered here; train.h has the rest.
#include <algorithm>

#include "sluice/base/names.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/dry_run.h"
#include "sluice/cli/output.h"
#include "sluice/cli/report.h"
#include "sluice/cli/run_config.h"
#include "sluice/cli/run_trace.h"
#include "sluice/cli/train.h"
#include "sluice/plan/flexsp/run_planner.h"
#include "sluice/report/update_methods.h"
#include "sluice/run/launch.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string file;
  bool print_config = false;
  bool dry_run = false;
  bool methods = false;
  bool build = false;
  std::string format;  // of the dry run
  std::string trace;
  int rollback = 0;
  CLI::App* command = nullptr;
};

Format dry_run_format(const Flags& flags) {
  if (!flags.format.empty() && !flags.dry_run)
    throw user_error(
        "--format is {}: only --dry-run prints in a format; add --dry-run, or leave --format out",
        flags.format);
  OutputFlags output;
  output.format_name = flags.format;
  return output.format("text,json");
}

// The value stays auto: what is printed may be the configuration of another start.
LoadedConfig with_noted_backend(LoadedConfig loaded) {
  if (loaded.values.comm.backend != Backend::automatic) return loaded;
  std::string& origin = loaded.origins["comm.backend"];
  origin = fmt::format("{}, here {}", origin.empty() ? "default" : origin,
                       chosen_backend(loaded.values));
  return loaded;
}

// Under a launcher all processes give the same answer, and one of them prints it.
ExitCode answer(const Flags& flags) {
  const Format format = dry_run_format(flags);
  const LoadedConfig loaded = load_run_config(flags.file, flags.command->remaining());
  std::string text;
  if (flags.print_config) {
    text = print_config(with_noted_backend(loaded));
  } else {
    if (!flags.trace.empty()) check_trace(flags.trace);
    PlannedRun run = plan_run(with_chosen_backend(loaded));
    if (flags.methods) {
      std::vector<UpdateMethod> methods = update_methods(run);
      for (UpdateMethod& method : methods)
        method.why_not = as_flags(method.why_not);
      if (std::none_of(methods.begin(), methods.end(),
                       [](const UpdateMethod& method) { return method.largest.has_value(); }))
        throw user_error("--methods: no method of updating takes this run: {}: {}",
                         methods.front().name, methods.front().why_not);
      text = format == Format::json ? update_methods_json(methods)
                                    : update_methods_text(run.plan, methods);
      if (prints_for_all()) OutputFlags().write(text);
      return ExitCode::ok;
    }
    run.plan.planner = flexsp::run_planner(run);
    const DryRun dry = dry_run(run, flags.rollback);
    text = format == Format::json ? dry_run_json(dry) : dry_run_text(dry);
  }
  if (prints_for_all()) OutputFlags().write(text);
  return ExitCode::ok;
}

ExitCode run(const Flags& flags) {
  if (flags.build) return ExitCode::ok;  // ./sluice has built it
  if (flags.file.empty()) throw CLI::RequiredError("config");
  if (flags.methods && flags.print_config)
    throw user_error(
        "--methods and --print-config are both given: each prints something else and exits; leave "
        "one out");
  if (flags.methods && !flags.dry_run)
    throw user_error("--methods is given without --dry-run: add --dry-run, or leave --methods out");
  if (flags.rollback < 0) throw user_error("--rollback is {}: needs 1 or more", flags.rollback);
  if (flags.print_config || flags.dry_run) {
    try {
      return answer(flags);
    } catch (const UserError& error) {
      if (prints_for_all()) throw;
      return error.code();
    }
  }
  dry_run_format(flags);
  return train({.config = [&] { return load_run_config(flags.file, flags.command->remaining()); },
                .trace = flags.trace,
                .rollback = flags.rollback});
}

}  // namespace

void add_train(CLI::App& app, ExitCode& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("train", "train a model through a schedule");
  flags->command = command;
  command->add_option("config", flags->file, "configuration in TOML (docs/configuration.md)");
  command->add_flag("--print-config", flags->print_config,
                    "print every value and where it comes from, and exit");
  command->add_flag(
      "--dry-run", flags->dry_run,
      "check everything that is here and print memory, traffic and times of each rank; needs no "
      "torch and no data, trains nothing, writes nothing");
  command->add_flag("--methods", flags->methods,
                    "with --dry-run: a table of what each method of updating would take, "
                    "synchronous and asynchronous");
  command->add_flag("--build", flags->build,
                    "install and build what training needs, and exit (./sluice does it)");
  command->add_option("--format", flags->format, "format of the dry run: text (default) or json")
      ->type_name("FORMAT");
  command
      ->add_option("--trace", flags->trace,
                   "draw the last step, measured and predicted: .json for Perfetto, .svg or .html")
      ->type_name("FILE");
  command
      ->add_option("--rollback", flags->rollback,
                   "go back N checkpoints and resume there; the newer ones are renamed to "
                   "NAME.rolled-back")
      ->type_name("N");
  command->allow_extras();
  command->footer(
      "Any key can be set: --section.key=value. --print-config shows every key, "
      "docs/configuration.md explains them.");
  command->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace sluice::cli
