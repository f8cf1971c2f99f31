// sluice simulate FILE: simulate and draw a schedule, wherever it comes from.
#include <numeric>

#include "sluice/cli/commands.h"
#include "sluice/cli/output.h"
#include "sluice/schedule/text_format.h"

namespace sluice::cli {
namespace {

constexpr const char* kFormats = "grid,svg,html,chrome,json,csv,torch-csv";

struct Flags {
  std::string file;
  int tokens = 0;  // 0: not given
  int buffers = -1;
  bool timeline = false;
  PricingFlags pricing;
  OutputFlags output;
};

// Tokens of a sequence where the file or the user states them, else 0.
std::int64_t stated_tokens(const Schedule& schedule, const Flags& flags) {
  const std::vector<std::int64_t>& sizes = schedule.slice_sizes;
  if (sizes.empty()) return flags.tokens;
  const auto sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (flags.tokens != 0 && flags.tokens != sum)
    throw user_error("--tokens is {}: slice_sizes of {} sums to {}; leave --tokens out",
                     flags.tokens, flags.file, sum);
  return sum;
}

void run(Flags& flags, ExitCode& exit_code) {
  const Format format = flags.output.format(kFormats);
  check_needs(flags.timeline, "--timeline", format == Format::json, "--format json");
  check_needs(flags.tokens > 0, "--tokens",
              flags.pricing.model || !flags.pricing.costs_file.empty(), "--model or --costs");
  flags.pricing.check();
  Schedule schedule = read_schedule_file(flags.file);
  const std::int64_t tokens = stated_tokens(schedule, flags);
  if (const auto& model = flags.pricing.model)
    flags.pricing.count_model(tokens > 0 ? tokens : model->tokens);
  const PricedSchedule priced = price_schedule({.schedule = std::move(schedule),
                                                .pricing = flags.pricing,
                                                .tokens = tokens,
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
  add_int(*command, "--tokens", flags->tokens, 1, 1 << 30,
          "tokens of a microbatch's sequence, for --model and --costs (default: what the schedule "
          "says, else the file in --model, else 4096)");
  flags->pricing.add_reduce_time(*command);
  add_int(*command, "--buffers", flags->buffers, 0, 1 << 30,
          "call it invalid if a device needs more than N receive buffers");
  command->add_flag("--timeline", flags->timeline, "add the op times to json");
  flags->output.add(*command, "grid (default), svg, html, chrome, json, csv, torch-csv");
  command->callback([flags, &exit_code] { run(*flags, exit_code); });
}

}  // namespace sluice::cli
