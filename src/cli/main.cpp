// The command line.
#include <fcntl.h>

#include <csignal>

#include "sluice/base/text.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/report.h"

namespace {

using sluice::ExitCode;

bool has_option(const CLI::App& app, const std::string& name) {
  return app.get_option_no_throw(name) != nullptr;
}

// The commands that know a flag.
std::vector<std::string> owners(const CLI::App& app, const std::string& flag) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({}))
    if (has_option(*command, flag)) names.push_back(command->get_name());
  return names;
}

// A word that no one takes: CLI11 says only that; we say where it belongs, or the nearest name.
std::string explain_extra(const CLI::App& app, const CLI::App& inner, const std::string& extra) {
  std::vector<std::string> known;
  for (const CLI::App* command : inner.get_subcommands({}))
    known.push_back(command->get_name());
  if (known.empty() && !extra.starts_with("-"))
    return fmt::format("'{}' is one word too many", extra);
  for (const CLI::Option* option : inner.get_options())
    known.push_back(option->get_name());
  if (const std::string flag = extra.substr(0, extra.find('=')); flag.starts_with("-")) {
    if (&inner != &app && has_option(inner, flag))
      return fmt::format("'{}' stands before the command: write sluice {} ... {}", flag,
                         inner.get_name(), flag);
    if (const std::vector<std::string> commands = owners(app, flag); !commands.empty())
      return fmt::format("'{}' is a flag of {}{}", flag, sluice::join(commands, ", "),
                         &inner == &app ? "" : fmt::format(", not of {}", inner.get_name()));
  }
  const std::string nearest = sluice::nearest_name(extra, known);
  return fmt::format("'{}' is not known here{}", extra,
                     nearest.empty() ? "" : fmt::format(": did you mean '{}'?", nearest));
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* inner = &app;
  while (!inner->get_subcommands().empty())
    inner = inner->get_subcommands().front();
  const std::string where =
      inner == &app ? "sluice --help" : fmt::format("sluice {} --help", inner->get_name());
  std::string text = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    text = text.substr(0, text.find(':')) + " needs a value";
  const std::vector<std::string> extras = app.remaining(true);
  if (!extras.empty()) text = explain_extra(app, *inner, extras.front());
  return fmt::format("{}; {} shows the usage", text, where);
}

// A standard file that is closed would be the next one that is opened, and get what we print.
void hold_standard_files() {
  for (int file = 0; file <= 2; ++file)
    if (fcntl(file, F_GETFD) < 0) open("/dev/null", O_RDONLY);  // writing to it fails, as before
}

}  // namespace

int main(int argc, char** argv) {
  hold_standard_files();
  std::signal(SIGXFSZ, SIG_IGN);  // a file over its limit is an error of the write, told as such
  CLI::App app{
      "Sluice generates, checks, simulates, draws and exports pipeline schedules, and trains with "
      "them.",
      "sluice"};
  app.set_version_flag("--version", std::string("sluice ") + SLUICE_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  app.option_defaults()->take_last();  // of a flag that is given twice
  ExitCode exit_code = ExitCode::ok;
  sluice::cli::add_schedule(app, exit_code);
  sluice::cli::add_check(app, exit_code);
  sluice::cli::add_simulate(app, exit_code);
  sluice::cli::add_compare(app, exit_code);
  sluice::cli::add_data(app, exit_code);
  sluice::cli::add_partition(app);
  sluice::cli::add_batch(app);
  sluice::cli::add_train(app, exit_code);
  sluice::cli::add_engine_commands(app, exit_code);
  sluice::cli::add_help(app);
  sluice::cli::add_completion(app);
  try {
    app.parse(argc, argv);
    return static_cast<int>(exit_code);
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    const sluice::UserError usage(explain(app, error));
    return static_cast<int>(sluice::cli::report_error(std::make_exception_ptr(usage)));
  } catch (...) {
    return static_cast<int>(sluice::cli::report_error(std::current_exception()));
  }
}
