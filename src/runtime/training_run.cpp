#include "sluice/runtime/training_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "sluice/cost/flops.h"
#include "sluice/cuda/device.h"
#include "sluice/run/batch_plan.h"
#include "sluice/run/op_costs.h"
#include "sluice/runtime/checkpointing.h"
#include "sluice/runtime/generation.h"
#include "sluice/runtime/gpu_memory.h"
#include "sluice/runtime/op_timings.h"
#include "sluice/runtime/out_of_memory.h"
#include "sluice/runtime/planned_batch.h"
#include "sluice/runtime/step_figures.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t validation_samples(const TrainingRun& run) {
  const std::int64_t all = run.held_out->num_samples();
  const std::int64_t batches = run.plan.config.validation.batches;
  return batches > 0 ? std::min(all, batches * run.plan.config.training.global_batch_size) : all;
}

// Of all devices together; 0: unknown. A GPU that several ranks share counts once.
double peak_tflops_of(const TrainingRun& run, const Communicator& world) {
  const bool gpu = run.device.is_cuda();
  double peak = run.plan.config.cluster.peak_tflops;
  if (peak == 0 && gpu)
    peak = known_peak_tflops(cuda::device_name(run.device.index()), run.plan.config.training.dtype);
  return gpu && !world.moves_device_memory() ? peak : peak * world.size();
}

std::vector<std::int64_t> predicted_by_rank(const RunPlan& plan) {
  std::vector<std::int64_t> bytes;
  for (int rank = 0; rank < plan.mesh.size(); ++rank)
    bytes.push_back(
        plan.peak_stash_bytes[static_cast<std::size_t>(place_of(rank, plan.mesh).pipeline)]);
  return bytes;
}

// The run as it was in this step on the first data rank.
RunPlan plan_of_step(const TrainingRun& run, std::int64_t step, const BatchPlan& batch) {
  if (!run.plan.ragged()) return run.plan;
  const std::int64_t size = run.plan.config.training.global_batch_size;
  const std::vector<std::int64_t> lengths = run.training.lengths((step - 1) * size, step * size);
  return plan_of_step(run.plan, batch, lengths, 0);
}

SharedMetrics shared_metrics(const StepResult& result, const std::vector<RankFigures>& ranks) {
  SharedMetrics shared;
  for (const RankFigures& rank : ranks)
    shared.all_to_all_s = std::max(shared.all_to_all_s, rank.all_to_all);
  shared.padded_tokens = result.padded_tokens;
  if (const auto& planning = result.planning)
    shared.planned = {planning->predicted_s, 1e3 * planning->plan_s, planning->wait_s};
  return shared;
}

StalenessMetrics staleness_metrics(const WindowCounts& counts) {
  StalenessMetrics out;
  out.mismatch.assign(counts.by_mismatch.begin(), counts.by_mismatch.end());
  while (out.mismatch.size() > 1 && out.mismatch.back() == 0)
    out.mismatch.pop_back();
  out.max_delay = counts.max_delay;
  out.gradients_counted = counts.gradients;
  return out;
}

// What rank 0 says and writes of each step.
class StepReports {
 public:
  // `first`: the first step that is taken. The metrics are those of run `id`.
  StepReports(const TrainingRun& run, Communicator& world, const std::string& id,
              std::int64_t first)
      : run_(run),
        world_(world),
        first_(first),
        peak_tflops_(peak_tflops_of(run, world)),
        predicted_(predicted_by_rank(run.plan)) {
    const std::string& folder = run.plan.config.metrics.folder;
    if (folder.empty()) return;
    written_.emplace(files_, MetricsFolderOptions{.folder = folder,
                                                  .run = id,
                                                  .first_step = first,
                                                  .plans = run.plan.planner != nullptr});
    if (written_->folder() != folder)
      run.on_note(fmt::format("{} holds the metrics of another run; this run writes its own to {}",
                              folder, written_->folder()));
  }

  // `seconds` is what the step took; `last`: none follows.
  void add(const StepResult& result, double seconds, const std::vector<RankFigures>& ranks,
           std::optional<double> validation_loss, bool last) {
    StepMetrics metrics = metrics_of(result, seconds, ranks);
    metrics.validation_loss = validation_loss;
    const Config& config = run_.plan.config;
    const bool logged = result.number % config.metrics.log_freq == 0 || result.number == first_ ||
                        result.number == config.training.steps || last || validation_loss;
    if (written_ && logged) write([&] { written_->append(metrics); });
    run_.on_step(metrics, logged);
  }

  // The line of a step's batch plan, before the step.
  void add_plan(const std::string& line) {
    if (written_) write([&] { written_->append_plan(line); });
  }

  // Why a row could not be written; null: all were.
  const std::exception_ptr& lost_row() const { return lost_row_; }

  // Of all ranks on this GPU, or of this rank alone if it has its own.
  std::string gpu_memory() const {
    GpuMemory memory = fixed_memory(run_.plan, world_);
    memory.stash = peak_stash_;
    return memory_line(memory, cuda::memory_use(run_.device.index()).peak);
  }

 private:
  template <typename Append>
  void write(const Append& append) {
    try {
      append();
    } catch (const UserError&) {
      lost_row_ = std::current_exception();
      written_.reset();
    }
  }

  StepMetrics metrics_of(const StepResult& result, double seconds,
                         const std::vector<RankFigures>& ranks) {
    StepMetrics metrics;
    metrics.step = result.number;
    metrics.time =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    metrics.loss = result.loss;
    metrics.grad_norm = result.gradient_norm;
    metrics.lr = result.learning_rate;
    metrics.tokens = result.num_tokens;
    metrics.step_time_s = seconds;
    const auto tokens = static_cast<double>(metrics.tokens);
    metrics.tps = tokens / seconds / world_.size();
    const double tflops =
        1e-12 * step_flops(run_.plan.shape, tokens, result.squared_lengths) / seconds;
    metrics.tflops = tflops / world_.size();
    if (peak_tflops_ > 0) metrics.mfu = tflops / peak_tflops_;
    metrics.bubble = bubble_of(ranks);
    if (run_.plan.planner || run_.plan.batch_plans) metrics.shared = shared_metrics(result, ranks);
    if (run_.plan.endless) metrics.staleness = staleness_metrics(counts_of(ranks));
    add_memory(ranks, metrics);
    return metrics;
  }

  void add_memory(const std::vector<RankFigures>& ranks, StepMetrics& metrics) {
    std::int64_t stash = 0;
    for (const RankFigures& rank : ranks)
      metrics.peak_stash_bytes.push_back(rank.peak_bytes);
    for (const RankFigures& rank :
         std::span(ranks).first(world_.moves_device_memory() ? 1 : ranks.size()))
      stash += rank.peak_bytes;
    peak_stash_ = std::max(peak_stash_, stash);
    metrics.predicted_peak_stash_bytes = predicted_;
    const PeakMemory peak = peak_memory(run_.device);
    metrics.memory_bytes = peak.peak;
    metrics.memory_share = static_cast<double>(peak.peak) / static_cast<double>(peak.capacity);
  }

  const TrainingRun& run_;
  Communicator& world_;
  const std::int64_t first_;
  const double peak_tflops_;
  const std::vector<std::int64_t> predicted_;
  RealFileSystem files_;
  std::optional<MetricsFolder> written_;
  std::exception_ptr lost_row_;
  std::int64_t peak_stash_ = 0;
};

// One rank's way through the steps.
class Loop {
 public:
  Loop(const TrainingRun& run, Communicator& world)
      : run_(run),
        config_(run.plan.config),
        world_(world),
        trainer_(run.plan, run.training, world, {.device = run.device}),
        figures_(world) {
    const bool leads = world.rank() == 0;
    if (leads && trainer_.plans().count > 0) run.on_note(trainer_.plans().line());
    Resumed resumed = load_checkpoint(config_, run.rollback, world, trainer_, run.on_note);
    last_step_ = resumed.step;
    if (leads) {
      if (const std::string note = check_batch_plans(run.plan, &run.training, last_step_);
          !note.empty())
        run.on_note(note);
      if (run.held_out) check_validation_plans(run.plan, *run.held_out);
    }
    first_ = resumed.step + 1;
    saver_.emplace(run.plan, world, trainer_, std::move(resumed), run.on_note);
    if (leads) reports_.emplace(run, world, saver_->run(), first_);
    trainer_.set_saves([this](const StepResult& result) {
      return !config_.checkpoint.folder.empty() && saves(result.number, result.stop);
    });
    trainer_.set_on_plan([this](const std::string& line) { reports_->add_plan(line); });
  }

  RunEnd run() {
    while (last_step_ < config_.training.steps && !stop_) {
      take_step(last_step_ + 1);
      finish_step();
    }
    trainer_.take_in();
    figures_.finish();
    return end();
  }

 private:
  bool saves(std::int64_t number, bool stop) const {
    const std::int64_t interval = config_.checkpoint.interval;
    return (interval > 0 && number % interval == 0) || stop || number == config_.training.steps;
  }

  bool validates(std::int64_t number) const {
    return run_.held_out &&
           (number % config_.validation.interval == 0 || number == config_.training.steps);
  }

  // A row that cannot be written ends the run as a signal does: the step is saved first.
  bool asked_to_stop() const {
    return (reports_ && reports_->lost_row()) || (run_.stop && run_.stop->load());
  }

  void take_step(std::int64_t number) {
    const auto started = Clock::now();
    const std::optional<StepResult> settled =
        trainer_.advance(number, [this] { return asked_to_stop(); });
    seconds_[number] = std::chrono::duration<double>(Clock::now() - started).count();
    const StepResult* taken = trainer_.open_step();
    const ExecutedStep& executed = taken ? taken->executed : settled->executed;
    if (run_.plan.endless) ended_.push_back(Clock::now());
    RankFigures figures = figures_of(executed);
    if (settled && settled->counts) figures.counts = *settled->counts;
    figures_.post(figures);
    timeline_ = executed.timeline;
    // The first step warms up, so its times are dropped as soon as there is a second one.
    if (number == first_ + 1) timings_ = {};
    timings_.add(timeline_);
    if (settled) timings_.add_updates(settled->update_seconds);
    last_step_ = number;
    if (settled) report(*settled);
  }

  // Settles, reports and saves the last step where that is due.
  void finish_step() {
    if (saves(last_step_, stop_) || validates(last_step_))
      if (const std::optional<StepResult> open = trainer_.settle()) report(*open);
    if (not_finite_ > 0) {
      figures_.finish();
      throw diverged(not_finite_, "the validation loss is not finite (nan or inf)");
    }
    if (saves(last_step_, stop_)) saver_->save(last_step_, run_.on_note);
  }

  void report(const StepResult& result) {
    // Whichever rank a signal reached, all stop after the same step.
    stop_ = stop_ || result.stop;
    std::optional<double> validation_loss;
    if (validates(result.number)) {
      validation_loss = trainer_.evaluate(*run_.held_out, validation_samples(run_));
      if (!std::isfinite(*validation_loss)) not_finite_ = result.number;
    }
    const double seconds = seconds_.extract(result.number).mapped();
    if (reports_) reports_->add(result, seconds, figures_.take(), validation_loss, stop_);
  }

  RunEnd end() {
    RunEnd end;
    end.last_step = last_step_;
    if (reports_ && run_.device.is_cuda()) end.gpu_memory = reports_->gpu_memory();
    end.stopped = stop_ && last_step_ < config_.training.steps;
    end.devices = gather_timelines(timeline_, trainer_.mesh());
    if (last_step_ >= first_) {
      end.step_s = mean_overlapping_step();
      const RunPlan step = plan_of_step(run_, last_step_, trainer_.batch_plan());
      end.schedule = step.schedule;
      end.costs = byte_costs(step);
      timings_.gather_into(*end.costs, trainer_.mesh().pipeline());
    }
    if (reports_ && reports_->lost_row()) std::rethrow_exception(reports_->lost_row());
    return end;
  }

  // Steps as they follow one another: a rank ends each with the same update.
  std::optional<double> mean_overlapping_step() const {
    if (!run_.plan.endless) return std::nullopt;
    const std::int64_t ends = run_.plan.endless->head() + run_.plan.endless->ahead();
    const auto steps = std::ssize(ended_) - 1;  // all but the first
    if (steps <= 2 * ends) return std::nullopt;
    const auto at = [&](std::int64_t n) { return ended_[static_cast<std::size_t>(n)]; };
    return std::chrono::duration<double>(at(steps - ends) - at(ends)).count() /
           static_cast<double>(steps - 2 * ends);
  }

  const TrainingRun& run_;
  const Config& config_;
  Communicator& world_;
  Trainer trainer_;
  std::optional<Saver> saver_;
  std::optional<StepReports> reports_;  // on rank 0
  FiguresOnTheirWay figures_;
  DeviceTimeline timeline_;  // of the last step
  OpTimings timings_;
  std::map<std::int64_t, double> seconds_;  // of steps that are not reported yet
  std::vector<Clock::time_point> ended_;    // of every step, where steps overlap
  std::int64_t first_ = 1, last_step_ = 0;
  std::int64_t not_finite_ = 0;  // the step whose validation loss is not finite
  bool stop_ = false;
};

// Drawn from the last checkpoint, on the device of the run: the trainers are gone and have freed
// its memory.
void show_sample(const TrainingRun& run, Communicator& world, const RunEnd& end) {
  const Config& config = run.plan.config;
  if (end.stopped || config.generate.prompt.empty()) return;
  world.barrier("end of training");
  const std::string checkpoint = config.checkpoint.folder + "/" + step_folder_name(end.last_step);
  if (world.rank() != 0 || !is_there(checkpoint)) return;
  try {
    const std::string text = sample_text(checkpoint, config.generate.prompt, {}, run.device);
    run.on_note(fmt::format("step {} continues generate.prompt:", end.last_step));
    run.on_sample(text);
  } catch (const c10::OutOfMemoryError&) {
    run.on_note(
        "no sample: the GPU has no memory left for it; sluice generate draws one on the CPU");
  }
}

}  // namespace

RunEnd run_training(const TrainingRun& run, Communicator& world) {
  try {
    at::set_num_threads(run.threads_per_rank);
    RunEnd end = Loop(run, world).run();
    show_sample(run, world, end);
    return end;
  } catch (const c10::Error& error) {
    if (!is_out_of_memory(error)) throw;
    // Raised before the first op, or between steps.
    throw out_of_memory(run.plan, world, run.device, 0);
  }
}

}  // namespace sluice
