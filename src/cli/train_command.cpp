// sluice train CONFIG: real training through any schedule, ranks as threads or as processes.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>

#include "cli/banner.h"
#include "cli/commands.h"
#include "cli/dry_run.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/run_setup.h"
#include "cli/run_trace.h"
#include "cli/stop_signal.h"
#include "runtime/datasets.h"
#include "runtime/preflight.h"
#include "runtime/rank_device.h"
#include "runtime/ranks.h"
#include "runtime/training_run.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string file;
  bool print_config = false;
  bool dry_run = false;
  std::string format;  // of the dry run
  std::string trace;
  int rollback = 0;
  CLI::App* command = nullptr;
};

std::string stopped_text(const CheckpointConfig& checkpoint, std::int64_t step) {
  if (checkpoint.folder.empty())
    return fmt::format("stopped after step {}; nothing is saved: checkpoint.folder is empty", step);
  return fmt::format("stopped after step {}; the same command{} resumes", step,
                     checkpoint.load == "latest" ? "" : " with --checkpoint.load=latest");
}

// The last step beside its prediction, for all ranks.
void report_step(const Flags& flags, const Schedule& schedule, RunEnd end, Progress& progress) {
  if (!end.costs) {
    if (flags.trace.empty()) return;
    throw user_error(
        "--trace is {}: no step is left to run, so there is nothing to draw; raise training.steps",
        flags.trace);
  }
  const StepComparison step = compare_step(schedule, std::move(end.devices), *end.costs);
  if (!flags.trace.empty()) write_trace(flags.trace, step);
  progress.note(step.line());
}

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
LoadedConfig with_chosen_backend(LoadedConfig loaded) {
  if (loaded.values.comm.backend != "auto") return loaded;
  std::string& origin = loaded.origins["comm.backend"];
  origin = fmt::format("{}, here {}", origin.empty() ? "default" : origin,
                       chosen_backend(loaded.values));
  return loaded;
}

ExitCode run(const Flags& flags) {
  const LoadedConfig loaded = load_run_config(flags.file, flags.command->remaining());
  if (flags.print_config) {
    if (prints_for_all()) OutputFlags().write(print_config(with_chosen_backend(loaded)));
    return ExitCode::ok;
  }
  const Format format = dry_run_format(flags);
  if (flags.rollback < 0) throw user_error("--rollback is {}: needs 1 or more", flags.rollback);
  const RunSetup setup = set_up_run(loaded);
  const auto& [config, schedule, options, predicted, notes] = setup;
  const Datasets data = open_datasets(config);
  if (!flags.trace.empty()) check_trace(flags.trace);
  if (flags.dry_run) {
    const auto resume = check_before_run(config, options, data.training, flags.rollback);
    if (prints_for_all())
      OutputFlags().write(format == Format::json ? dry_run_json(setup, resume)
                                                 : dry_run_text(setup, resume));
    return ExitCode::ok;
  }
  check_weights_fit(setup);

  std::signal(SIGPIPE, SIG_IGN);  // the run goes on when the reader of its lines has left
  TrainingRun training_run{.config = config,
                           .options = options,
                           .lowered = schedule,
                           .training = data.training,
                           .held_out = data.held_out ? &*data.held_out : nullptr,
                           .predicted_peak_bytes = {},
                           .on_step = {},
                           .on_note = {},
                           .on_sample = {}};
  const MeshShape mesh = mesh_of(options, schedule);
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const auto device = static_cast<std::size_t>(place_of(rank, mesh).pipeline);
    training_run.predicted_peak_bytes.push_back(
        static_cast<std::int64_t>(predicted.devices[device].peak_bytes));
  }
  training_run.rollback = flags.rollback;
  Progress progress(config);
  training_run.on_step = [&](const StepMetrics& metrics, bool logged) {
    progress.step(metrics, logged);
  };
  training_run.on_note = [&](const std::string& note) { progress.note(note); };
  training_run.on_sample = [](const std::string& text) { std::puts(text.c_str()); };

  const RankDevices devices(config.cluster, own_gpu(config.comm));
  std::atomic<bool> stopped = false;
  const auto train_rank = [&](Communicator& world) {
    const auto stream = devices.take(world.rank());
    TrainingRun mine = training_run;
    mine.threads_per_rank = threads_per_rank(world);
    // Not before: mpirun also ends those that wait for a rank that could not start.
    mine.stop = &stop_on_signals(prints_for_all());
    if (world.rank() == 0) {
      for (const std::string& line : banner(setup, data, mine.threads_per_rank, devices.text()))
        progress.note(line);
      for (const std::string& line : notes)
        progress.note(line);
    }
    RunEnd end = run_training(mine, world);
    if (end.stopped) stopped = true;
    if (!end.gpu_memory.empty()) progress.note("GPU memory at its peak: " + end.gpu_memory);
    if (world.rank() != 0) return;
    const std::string last_words =
        end.stopped ? stopped_text(config.checkpoint, end.last_step) : "";
    report_step(flags, schedule, std::move(end), progress);
    if (!last_words.empty()) progress.note(last_words);
  };
  std::vector<Fact> facts = shared_facts(config, schedule, &data.training);
  facts.push_back({"--rollback", std::to_string(flags.rollback)});
  const ExitCode code = run_ranks(config.comm, mesh.size(), report_error, train_rank, facts);
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
                    "print every value and where it comes from, and exit");
  command->add_flag(
      "--dry-run", flags->dry_run,
      "check everything and print the memory of each rank; neither trains nor writes");
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
  command->callback(
      [flags, &exit_code] { exit_code = report_once([&] { return run(*flags); }, report_error); });
}

}  // namespace sluice::cli
