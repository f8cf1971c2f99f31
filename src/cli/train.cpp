// sluice train CONFIG: real training through any schedule, ranks as threads or as processes.
#include "sluice/cli/train.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>

#include "sluice/cli/banner.h"
#include "sluice/cli/dry_run.h"
#include "sluice/cli/output.h"
#include "sluice/cli/progress.h"
#include "sluice/cli/report.h"
#include "sluice/cli/run_config.h"
#include "sluice/cli/run_trace.h"
#include "sluice/cli/stop_signal.h"
#include "sluice/plan/flexsp/run_planner.h"
#include "sluice/plan/overlap_advice.h"
#include "sluice/runtime/datasets.h"
#include "sluice/runtime/rank_device.h"
#include "sluice/runtime/ranks.h"
#include "sluice/runtime/training_run.h"
#include "sluice/sim/steady.h"

namespace sluice::cli {
namespace {

std::string stopped_text(const CheckpointConfig& checkpoint, std::int64_t step) {
  if (checkpoint.folder.empty())
    return fmt::format("stopped after step {}; nothing is saved: checkpoint.folder is empty", step);
  return fmt::format("stopped after step {}; the same command{} resumes", step,
                     checkpoint.load == "latest" ? "" : " with --checkpoint.load=latest");
}

// The mean step beside its prediction.
void report_overlapping(const RunEnd& end, Progress& progress) {
  if (!end.step_s) return;
  const SteadyWindow step = mean_window(end.schedule, *end.costs);
  progress.note(fmt::format(
      "a step: {:.4g} s measured, {:.4g} s predicted (ratio {:.3f}); the busiest "
      "device works {:.4g} "
      "s of it ({:.1f}%), updates included",
      *end.step_s, step.added, *end.step_s / step.added, step.work, 100 * step.work / *end.step_s));
}

// The last step beside its prediction, for all ranks.
void report_step(const TrainRequest& request, RunEnd end, Progress& progress) {
  if (!end.costs) {
    if (request.trace.empty()) return;
    throw user_error(
        "--trace is {}: no step is left to run, so there is nothing to draw; raise training.steps",
        request.trace);
  }
  if (end.schedule.num_windows > 1) return report_overlapping(end, progress);
  const StepComparison step = compare_step(end.schedule, std::move(end.devices), *end.costs);
  if (!request.trace.empty()) write_trace(request.trace, step);
  progress.note(step.line());
}

ExitCode run(const TrainRequest& request) {
  PlannedRun planned = plan_run(with_chosen_backend(request.config()));
  planned.plan.planner = flexsp::run_planner(planned);
  const RunPlan& plan = planned.plan;
  const Config& config = plan.config;
  const Datasets data = open_datasets(config);
  if (!request.trace.empty()) {
    if (plan.endless)
      throw user_error(
          "--trace is {}: it draws a step, and with {} each step runs into the next; leave the "
          "flag "
          "out, or set asynchronous.flush = true; sluice simulate draws several steps",
          request.trace, plan.schedule.name);
    check_trace(request.trace);
  }
  check_memory(plan);

  std::signal(SIGPIPE, SIG_IGN);  // the run goes on when the reader of its lines has left
  const RankDevices devices(config.cluster, own_gpu(config.comm));
  TrainingRun training_run{.plan = plan,
                           .training = data.training,
                           .held_out = data.held_out ? &*data.held_out : nullptr,
                           .device = devices.device(),
                           .on_step = {},
                           .on_note = {},
                           .on_sample = {}};
  training_run.rollback = request.rollback;
  Progress progress(config);
  training_run.on_step = [&](const StepMetrics& metrics, bool logged) {
    progress.step(metrics, logged);
  };
  training_run.on_note = [&](const std::string& note) { progress.note(note); };
  training_run.on_sample = [](const std::string& text) { std::puts(text.c_str()); };

  std::atomic<bool> stopped = false;
  const auto train_rank = [&](Communicator& world) {
    const auto stream = devices.take(world.rank());
    TrainingRun mine = training_run;
    mine.threads_per_rank = threads_per_rank(world);
    // Not before: mpirun also ends those that wait for a rank that could not start.
    mine.stop = &stop_on_signals(prints_for_all());
    if (world.rank() == 0) {
      for (const std::string& line : banner(plan, data, mine.threads_per_rank, devices.text()))
        progress.note(line);
      for (const std::string& line : advised_notes(planned))
        progress.note(line);
      for (const std::string& line : overlong_notes(data))
        progress.note(line);
    }
    RunEnd end = run_training(mine, world);
    if (end.stopped) stopped = true;
    if (!end.gpu_memory.empty()) progress.note("GPU memory at its peak: " + end.gpu_memory);
    if (world.rank() != 0) return;
    const std::string last_words =
        end.stopped ? stopped_text(config.checkpoint, end.last_step) : "";
    report_step(request, std::move(end), progress);
    if (!last_words.empty()) progress.note(last_words);
  };
  std::vector<Fact> facts = shared_facts(plan, &data.training);
  facts.push_back({"--rollback", std::to_string(request.rollback)});
  const ExitCode code = run_ranks(config.comm, plan.mesh.size(), report_error, train_rank, facts);
  return code == ExitCode::ok && stopped ? ExitCode::terminated : code;
}

}  // namespace

ExitCode train(const TrainRequest& request) {
  return report_once([&] { return run(request); }, report_error);
}

}  // namespace sluice::cli
