#include "sluice/runtime/training_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <list>
#include <map>

#include "sluice/cost/flops.h"
#include "sluice/cuda/device.h"
#include "sluice/run/op_costs.h"
#include "sluice/runtime/checkpointing.h"
#include "sluice/runtime/generation.h"
#include "sluice/runtime/gpu_memory.h"
#include "sluice/runtime/op_timings.h"
#include "sluice/runtime/out_of_memory.h"

namespace sluice {
namespace {

// One rank's figures of a step.
struct RankFigures {
  double start = 0, end = 0, busy = 0;
  std::int64_t peak_bytes = 0;
};

RankFigures figures_of(const ExecutedStep& executed) {
  RankFigures figures;
  const auto& spans = executed.timeline.spans;
  if (!spans.empty()) {
    figures.start = spans.front().start;
    figures.end = spans.back().end;
  }
  figures.busy = executed.timeline.busy;
  figures.peak_bytes = executed.peak_stash_bytes;
  return figures;
}

// Sends every rank's figures to rank 0, which collects them when it reports. No other rank waits.
class FiguresOnTheirWay {
 public:
  explicit FiguresOnTheirWay(Communicator& world) : world_(world) {}

  void post(const RankFigures& mine) {
    Step& step = steps_.emplace_back();
    const bool leads = world_.rank() == 0;
    step.figures.resize(leads ? static_cast<std::size_t>(world_.size()) : 1);
    step.figures[0] = mine;
    for (int rank = 1; leads && rank < world_.size(); ++rank)
      step.requests.push_back(
          world_.recv(rank,
                      std::as_writable_bytes(
                          std::span(step.figures).subspan(static_cast<std::size_t>(rank), 1)),
                      kLabel));
    if (!leads)
      step.requests.push_back(world_.send(0, std::as_bytes(std::span(step.figures)), kLabel));
    if (!leads) reap();
  }

  // The figures of the oldest step; on rank 0 only.
  std::vector<RankFigures> take() {
    world_.wait_all(steps_.front().requests);
    std::vector<RankFigures> figures = std::move(steps_.front().figures);
    steps_.pop_front();
    return figures;
  }

  // Waits until all that this rank has sent has arrived.
  void finish() {
    for (Step& step : steps_)
      world_.wait_all(step.requests);
    steps_.clear();
  }

 private:
  static constexpr const char* kLabel = "figures";
  struct Step {
    std::vector<RankFigures> figures;
    std::vector<Request> requests;
  };
  void reap() {
    while (!steps_.empty() && world_.test(steps_.front().requests[0]))
      steps_.pop_front();
  }

  Communicator& world_;
  std::list<Step> steps_;
};

template <typename Row>
std::vector<std::vector<Row>> gather_rows(const std::vector<Row>& mine, Communicator& world) {
  static_assert(std::is_trivially_copyable_v<Row>);
  std::vector<std::vector<Row>> out;
  for (const std::vector<std::byte>& bytes :
       world.gather(0, std::as_bytes(std::span(mine)), "timelines")) {
    std::vector<Row>& rows = out.emplace_back(bytes.size() / sizeof(Row));
    if (!rows.empty()) std::memcpy(rows.data(), bytes.data(), bytes.size());
  }
  return out;
}

// The timelines of rank 0's pipeline, on rank 0; nothing elsewhere. Times count from the first op.
std::vector<DeviceTimeline> gather_timelines(const DeviceTimeline& mine, const Mesh& mesh) {
  if (mesh.place().data > 0 || mesh.place().tensor > 0) return {};
  auto spans = gather_rows(mine.spans, mesh.pipeline());
  auto memory = gather_rows(mine.memory, mesh.pipeline());
  double first = std::numeric_limits<double>::max();
  for (const auto& device : spans)
    if (!device.empty()) first = std::min(first, device.front().start);
  for (auto& device : spans)
    for (Span& span : device) {
      span.start -= first;
      span.end -= first;
    }
  for (auto& device : memory)
    for (MemoryPoint& point : device)
      point.time -= first;
  std::vector<DeviceTimeline> out(spans.size());
  for (std::size_t rank = 0; rank < out.size(); ++rank) {
    DeviceTimeline& device = out[rank];
    device.spans = spans[rank];
    device.memory = memory[rank];
    for (const Span& span : device.spans)
      device.busy += span.end - span.start;
    for (const MemoryPoint& point : device.memory)
      device.peak = std::max(device.peak, point.value);
  }
  return out;
}

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

double bubble_of(const std::vector<RankFigures>& ranks) {
  double span = 0, ideal = 0;
  for (const RankFigures& rank : ranks) {
    span = std::max(span, rank.end - rank.start);
    ideal = std::max(ideal, rank.busy);
  }
  return span > 0 ? 1 - ideal / span : 0;
}

}  // namespace

namespace {

RunEnd run_all_steps(const TrainingRun& run, Communicator& world) {
  using Clock = std::chrono::steady_clock;
  at::set_num_threads(run.threads_per_rank);
  const Config& config = run.plan.config;
  const bool leads = world.rank() == 0;
  Trainer trainer(run.plan, run.training, world, {.device = run.device});
  if (leads && trainer.plans().count > 0) run.on_note(trainer.plans().line());
  RunEnd end;
  Resumed resumed = load_checkpoint(config, run.rollback, world, trainer, run.on_note);
  end.last_step = resumed.step;
  Saver saver(run.plan, world, trainer, std::move(resumed), run.on_note);
  RealFileSystem files;
  std::optional<MetricsFolder> written;
  if (leads && !config.metrics.folder.empty()) {
    written.emplace(files, MetricsFolderOptions{.folder = config.metrics.folder,
                                                .run = saver.run(),
                                                .first_step = end.last_step + 1});
    if (written->folder() != config.metrics.folder)
      run.on_note(fmt::format("{} holds the metrics of another run; this run writes its own to {}",
                              config.metrics.folder, written->folder()));
  }

  const std::int64_t tokens =
      std::int64_t{config.training.global_batch_size} * config.training.sequence_length;
  DeviceTimeline last;
  OpTimings timings;
  FiguresOnTheirWay figures(world);
  std::map<std::int64_t, double> seconds;  // how long the steps took that are not reported yet
  const std::int64_t first = end.last_step + 1;
  const std::int64_t interval = config.validation.interval;
  const auto validates = [&](std::int64_t number) {
    return run.held_out && (number % interval == 0 || number == config.training.steps);
  };
  // A row that cannot be written ends the run as a signal does: the step is saved first.
  std::exception_ptr lost_row;
  const auto asked = [&] { return lost_row || (run.stop && run.stop->load()); };
  bool stop = false;
  std::int64_t not_finite = 0;  // the step whose validation loss is not finite
  const double peak_tflops = peak_tflops_of(run, world);

  const std::vector<std::int64_t> predicted = predicted_by_rank(run.plan);
  GpuMemory memory;  // of all ranks on this GPU, or of this rank alone if it has its own
  const auto report = [&](const StepResult& result) {
    // Whichever rank a signal reached, all stop after the same step.
    stop = stop || result.stop;
    std::optional<double> validation_loss;
    if (validates(result.number)) {
      validation_loss = trainer.evaluate(*run.held_out, validation_samples(run));
      if (!std::isfinite(*validation_loss)) not_finite = result.number;
    }
    if (!leads) return;
    const std::vector<RankFigures> ranks = figures.take();
    StepMetrics metrics;
    metrics.step = result.number;
    metrics.time =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    metrics.loss = result.loss;
    metrics.grad_norm = result.gradient_norm;
    metrics.lr = result.learning_rate;
    metrics.tokens = tokens;
    metrics.step_time_s = seconds.extract(result.number).mapped();
    metrics.tps = static_cast<double>(tokens) / metrics.step_time_s / world.size();
    const double tflops =
        1e-12 * step_flops(run.plan.shape, static_cast<double>(tokens), result.squared_lengths) /
        metrics.step_time_s;
    metrics.tflops = tflops / world.size();
    if (peak_tflops > 0) metrics.mfu = tflops / peak_tflops;
    metrics.bubble = bubble_of(ranks);
    std::int64_t stash = 0;
    for (const RankFigures& rank : ranks)
      metrics.peak_stash_bytes.push_back(rank.peak_bytes);
    for (const RankFigures& rank :
         std::span(ranks).first(world.moves_device_memory() ? 1 : ranks.size()))
      stash += rank.peak_bytes;
    memory.stash = std::max(memory.stash, stash);
    metrics.predicted_peak_stash_bytes = predicted;
    metrics.validation_loss = validation_loss;
    const PeakMemory peak = peak_memory(run.device);
    metrics.memory_bytes = peak.peak;
    metrics.memory_share = static_cast<double>(peak.peak) / static_cast<double>(peak.capacity);
    const bool logged = result.number % config.metrics.log_freq == 0 || result.number == first ||
                        result.number == config.training.steps || stop || validation_loss;
    try {
      if (written && logged) written->append(metrics);
    } catch (const UserError&) {
      lost_row = std::current_exception();
      written.reset();
    }
    run.on_step(metrics, logged);
  };

  for (std::int64_t number = first; number <= config.training.steps && !stop; ++number) {
    const auto started = Clock::now();
    const std::optional<StepResult> settled = trainer.advance(number, asked);
    seconds[number] = std::chrono::duration<double>(Clock::now() - started).count();
    const StepResult* taken = trainer.open_step();
    const ExecutedStep& executed = taken ? taken->executed : settled->executed;
    figures.post(figures_of(executed));
    last = executed.timeline;
    // The first step warms up, so its times are dropped as soon as there is a second one.
    if (number == first + 1) timings = {};
    timings.add(last);
    end.last_step = number;
    if (settled) report(*settled);

    const bool due = config.checkpoint.interval > 0 && number % config.checkpoint.interval == 0;
    const bool is_last = number == config.training.steps;
    if (due || stop || is_last || validates(number))
      if (const std::optional<StepResult> open = trainer.settle()) report(*open);
    if (not_finite > 0) {
      figures.finish();
      throw diverged(not_finite, "the validation loss is not finite (nan or inf)");
    }
    if (due || stop || is_last) saver.save(number, run.on_note);
  }
  figures.finish();
  if (leads && run.device.is_cuda()) {
    const std::int64_t stash = memory.stash;
    memory = fixed_memory(run.plan, world);
    memory.stash = stash;
    end.gpu_memory = memory_line(memory, cuda::memory_use(run.device.index()).peak);
  }
  end.stopped = stop && end.last_step < config.training.steps;
  end.devices = gather_timelines(last, trainer.mesh());
  if (end.last_step >= first) {
    end.costs = byte_costs(run.plan);
    timings.gather_into(*end.costs, trainer.mesh().pipeline());
  }
  if (lost_row) std::rethrow_exception(lost_row);
  return end;
}

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
    RunEnd end = run_all_steps(run, world);
    show_sample(run, world, end);
    return end;
  } catch (const c10::Error& error) {
    if (!is_out_of_memory(error)) throw;
    // Raised before the first op, or between steps.
    throw out_of_memory(run.plan, world, run.device, 0);
  }
}

}  // namespace sluice
