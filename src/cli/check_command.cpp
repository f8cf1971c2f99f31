// sluice check FILE: is a schedule valid, wherever it comes from?
#include <algorithm>

#include "sluice/base/text.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/output.h"
#include "sluice/schedule/text_format.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string file;
  int buffers = -1, max_mismatch = -1, max_delay = -1;
  OutputFlags output;
};

void run(const Flags& flags, ExitCode& exit_code) {
  const bool json = flags.output.format("text,json") == Format::json;
  PricedSchedule checked;
  checked.schedule = read_schedule_file(flags.file);
  for (const auto& [flag, value] :
       {std::pair{"--max-mismatch", flags.max_mismatch}, std::pair{"--max-delay", flags.max_delay}})
    if (value >= 0 && checked.schedule.num_windows == 1)
      throw user_error(
          "{} is {}: {} has one window, so no update comes between its ops; leave the flag out",
          flag, value, printable(flags.file));
  checked.validation =
      validate(checked.schedule,
               {.max_buffers = flags.buffers, .staleness = {flags.max_mismatch, flags.max_delay}});
  if (checked.validation.valid() && checked.schedule.num_windows > 1)
    checked.staleness = staleness_of(checked.schedule);
  exit_code = checked.validation.valid() ? ExitCode::ok : ExitCode::invalid_schedule;
  if (json) return flags.output.write(schedule_json(checked, false));
  if (!checked.validation.valid()) {
    flags.output.write(fmt::format("invalid: {} has {}\n{}", printable(flags.file),
                                   counted(std::ssize(checked.validation.problems), "problem"),
                                   problem_lines(checked.validation)));
    return;
  }
  const auto& buffers = checked.validation.receive_buffers;
  flags.output.write(fmt::format(
      "valid: {} ({}; {} compute ops; at most {} receive buffers on a device)\n",
      checked.schedule.name, schedule_caption(checked), checked.schedule.num_compute_ops(),
      buffers.empty() ? 0 : *std::max_element(buffers.begin(), buffers.end())));
}

}  // namespace

void add_check(CLI::App& app, ExitCode& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("check", "check that a schedule file is valid and cannot deadlock");
  command->add_option("file", flags->file, "schedule in csv or torch-csv; - is standard input")
      ->required();
  add_int(*command, "--buffers", flags->buffers, 0, 1 << 30,
          "call it invalid if a device needs more than N receive buffers");
  add_int(*command, "--max-mismatch", flags->max_mismatch, 0, 1 << 20,
          "call it invalid if more updates than this come between a forward and its backward");
  add_int(*command, "--max-delay", flags->max_delay, 0, 1 << 20,
          "call it invalid if the weights of a forward lack more updates than this");
  flags->output.add(*command, "text (default), json");
  command->callback([flags, &exit_code] { run(*flags, exit_code); });
}

}  // namespace sluice::cli
