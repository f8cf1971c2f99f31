// sluice simulate FILE: simulate and draw a schedule, wherever it comes from.
#include "cli/commands.h"
#include "cli/price.h"

namespace sluice::cli {
namespace {

constexpr const char* kFormats = "grid,svg,html,chrome,json,csv,torch-csv";

struct Flags {
  std::string file;
  int buffers = -1;
  bool timeline = false;
  PricingFlags pricing;
  OutputFlags output;
};

void run(const Flags& flags, ExitCode& exit_code) {
  const Format format = flags.output.format(kFormats);
  check_needs(flags.timeline, "--timeline", format == Format::json, "--format json");
  flags.pricing.check();
  const PricedSchedule priced = price({.schedule = read_named_schedule(flags.file),
                                       .pricing = flags.pricing,
                                       .buffers = flags.buffers,
                                       .timeline = flags.timeline || draws(format)});
  exit_code = write_priced(priced, format, flags.timeline, flags.output);
}

}  // namespace

void add_simulate(CLI::App& app, ExitCode& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("simulate", "simulate and draw a schedule from a file");
  command->add_option("file", flags->file, "schedule in csv or torch-csv; - is standard input")
      ->required();
  flags->pricing.add(*command, kTimesHelp);
  flags->pricing.add_reduce_time(*command);
  add_int(*command, "--buffers", flags->buffers, 0, 1 << 30,
          "call it invalid if a device needs more than N receive buffers");
  command->add_flag("--timeline", flags->timeline, "add the op times to json");
  flags->output.add(*command, "grid (default), svg, html, chrome, json, csv, torch-csv");
  command->callback([flags, &exit_code] { run(*flags, exit_code); });
}

}  // namespace sluice::cli
