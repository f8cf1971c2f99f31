// The command line.
#include <fcntl.h>

#include <csignal>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/report.h"

namespace {

using sluice::ExitCode;

// A flag or subcommand that does not exist: CLI11 says only that; we add the nearest name.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* inner = &app;
  while (!inner->get_subcommands().empty())
    inner = inner->get_subcommands().front();
  const std::string where =
      inner == &app ? "sluice --help" : fmt::format("sluice {} --help", inner->get_name());
  std::string text = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    text = text.substr(0, text.find(':')) + " needs a value";
    for (const CLI::Option* option : inner->get_options())
      if (option->count() > 1 && option->get_items_expected_max() == 1)
        text =
            fmt::format("{} is given {} times: give it once", option->get_name(), option->count());
  }
  const std::vector<std::string> extras = app.remaining(true);
  if (!extras.empty()) {
    const std::string& extra = extras.front();
    std::vector<std::string> known;
    for (const CLI::App* sub : inner->get_subcommands({}))
      known.push_back(sub->get_name());
    const bool too_many = known.empty() && !extra.starts_with("-");
    for (const CLI::Option* option : inner->get_options())
      known.push_back(option->get_name());
    const std::string nearest = sluice::nearest_name(extra, known);
    if (too_many)
      text = fmt::format("'{}' is one word too many", extra);
    else
      text = fmt::format("'{}' is not known here{}", extra,
                         nearest.empty() ? "" : fmt::format(": did you mean '{}'?", nearest));
  }
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
  CLI::App app{"Sluice: pipeline schedules as values: generate, prove, price, draw, export, train.",
               "sluice"};
  app.set_version_flag("--version", std::string("sluice ") + SLUICE_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  ExitCode exit_code = ExitCode::ok;
  sluice::cli::add_schedule(app, exit_code);
  sluice::cli::add_check(app, exit_code);
  sluice::cli::add_simulate(app, exit_code);
  sluice::cli::add_compare(app, exit_code);
  sluice::cli::add_data(app, exit_code);
  sluice::cli::add_engine_commands(app, exit_code);
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
