// sluice train CONFIG: real training through any schedule, ranks as threads or as processes.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>

#include "cli/commands.h"
#include "cli/dry_run.h"
#include "cli/output.h"
#include "cli/report.h"
#include "cli/run_setup.h"
#include "cli/run_trace.h"
#include "runtime/datasets.h"
#include "runtime/ranks.h"
#include "runtime/training_run.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string file;
  bool print_config = false;
  bool dry_run = false;
  std::string trace;
  CLI::App* command = nullptr;
};

std::atomic<bool> stop_requested = false;  // a signal handler can reach nothing else

void request_stop(int) {
  if (stop_requested.exchange(true)) _exit(static_cast<int>(ExitCode::terminated));
}

double process_gibibytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word)
    if (word == "VmHWM:") {
      double kibibytes = 0;
      status >> kibibytes;
      return kibibytes / (1 << 20);
    }
  return 0;
}

double machine_gibibytes() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)) /
         (1 << 30);
}

// Multiplications and additions of a training step per token: 6 per weight outside the embedding,
// and attention over the whole sequence.
double flops_per_token(const ModelShape& s, std::int64_t length) {
  const double block = static_cast<double>(s.dim * s.qkv_dim() + s.dim * s.dim +
                                           s.dim * s.up_dim() + s.ffn_dim * s.dim);
  const double weights =
      static_cast<double>(s.layers) * block + static_cast<double>(s.vocab_size * s.dim);
  return 6 * weights + 12 * static_cast<double>(s.layers * s.dim * length);
}

// The last step beside its prediction, of all ranks.
void report_step(const Flags& flags, const Schedule& schedule, RunEnd end) {
  if (!end.costs) {
    if (flags.trace.empty()) return;
    throw user_error("--trace is {}: no step was left to take; raise training.steps", flags.trace);
  }
  const StepComparison step = compare_step(schedule, std::move(end.devices), *end.costs);
  if (!flags.trace.empty()) write_trace(flags.trace, step);
  fmt::print(stderr, "sluice: {}\n", step.line());
}

ExitCode run(const Flags& flags) {
  const LoadedConfig loaded = load_config(flags.file, flags.command->remaining());
  if (flags.print_config) {
    if (prints_for_all()) OutputFlags().write(print_config(loaded));
    return ExitCode::ok;
  }
  const RunSetup setup = set_up_run(loaded);
  const auto& [config, schedule, options, predicted] = setup;
  if (flags.dry_run) {
    if (prints_for_all()) OutputFlags().write(dry_run_text(setup));
    return ExitCode::ok;
  }
  const Datasets data = open_datasets(config);

  // SIGUSR1 is what mpirun hands on as it comes, and what Slurm can send ahead of its time limit.
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1})
    std::signal(signal, request_stop);
  TrainingRun training_run{.config = config,
                           .options = options,
                           .lowered = schedule,
                           .training = data.training,
                           .held_out = data.held_out ? &*data.held_out : nullptr,
                           .predicted_peak_bytes = {},
                           .on_step = {},
                           .on_note = {}};
  for (const DeviceResult& device : predicted.devices)
    training_run.predicted_peak_bytes.push_back(static_cast<std::int64_t>(device.peak_bytes));
  training_run.stop = &stop_requested;
  const double flops = flops_per_token(options.shape, config.training.sequence_length);
  training_run.on_step = [&](const StepMetrics& metrics) {
    StepLine line;
    line.step = metrics.step;
    line.loss = metrics.loss;
    line.grad_norm = metrics.grad_norm;
    line.memory_gib = process_gibibytes();
    line.memory_percent = 100 * line.memory_gib / machine_gibibytes();
    line.tps = metrics.tps;
    line.tflops = metrics.tps * flops / 1e12;
    line.bubble_percent = 100 * metrics.bubble;
    std::string text = step_line(line);
    if (metrics.validation_loss)
      text += fmt::format("  validation: {:8.5f}", *metrics.validation_loss);
    fmt::print("{}\n", text);
    std::fflush(stdout);
  };
  training_run.on_note = [](const std::string& note) { fmt::print(stderr, "sluice: {}\n", note); };

  std::atomic<bool> stopped = false;
  const ExitCode code =
      run_ranks(config.comm, schedule.num_devices(), report_error, [&](Communicator& world) {
        TrainingRun mine = training_run;
        mine.threads_per_rank = threads_per_rank(world);
        if (world.rank() == 0)
          fmt::print(stderr, "sluice: {} on {} ranks of {} threads each, {} training samples\n",
                     schedule.name, world.size(), mine.threads_per_rank,
                     data.training.num_samples());
        RunEnd end = run_training(mine, world);
        if (end.stopped) stopped = true;
        if (world.rank() == 0) report_step(flags, schedule, std::move(end));
      });
  return code == ExitCode::ok && stopped ? ExitCode::terminated : code;
}

}  // namespace

void add_train(CLI::App& app, ExitCode& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("train", "train a model through a schedule");
  flags->command = command;
  command->add_option("config", flags->file, "configuration in TOML (docs/configuration.md)")
      ->required();
  command->add_flag("--print-config", flags->print_config,
                    "every value and where it comes from; trains nothing");
  command->add_flag("--dry-run", flags->dry_run, "check everything, print memory; train nothing");
  command
      ->add_option("--trace", flags->trace,
                   "the last step, measured and predicted: .json for Perfetto, .svg or .html")
      ->type_name("FILE");
  command->allow_extras();
  command->footer("Any key can be set: --section.key=value");
  command->callback(
      [flags, &exit_code] { exit_code = report_once([&] { return run(*flags); }, report_error); });
}

}  // namespace sluice::cli
