#include "runtime/training_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "runtime/checkpointing.h"
#include "runtime/generation.h"
#include "runtime/op_timings.h"
#include "runtime/options.h"

namespace sluice {
namespace {

// One rank's figures of a step, gathered on all.
struct RankFigures {
  double start = 0, end = 0, busy = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t stop = 0;  // it was asked to
};

std::vector<RankFigures> gather_figures(const StepResult& result, bool stop, Communicator& world) {
  RankFigures mine;
  mine.stop = stop;
  const auto& spans = result.executed.timeline.spans;
  if (!spans.empty()) {
    mine.start = spans.front().start;
    mine.end = spans.back().end;
  }
  mine.busy = result.executed.timeline.busy;
  mine.peak_bytes = result.executed.peak_stash_bytes;
  std::vector<RankFigures> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                   "figures");
  return all;
}

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

// All ranks' on rank 0, none elsewhere.
std::vector<DeviceTimeline> gather_timelines(const DeviceTimeline& mine, Communicator& world) {
  const auto spans = gather_rows(mine.spans, world);
  const auto memory = gather_rows(mine.memory, world);
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

double bubble_of(const std::vector<RankFigures>& ranks) {
  double span = 0, ideal = 0;
  for (const RankFigures& rank : ranks) {
    span = std::max(span, rank.end - rank.start);
    ideal = std::max(ideal, rank.busy);
  }
  return span > 0 ? 1 - ideal / span : 0;
}

}  // namespace

RunEnd run_training(const TrainingRun& run, Communicator& world) {
  using Clock = std::chrono::steady_clock;
  at::set_num_threads(run.threads_per_rank);
  const Config& config = run.config;
  const bool leads = world.rank() == 0;
  Trainer trainer(run.options, run.lowered, run.training, world);
  RunEnd end;
  end.last_step = load_checkpoint(config, world, trainer, run.on_note);
  Saver saver(config, run.lowered, world, trainer, end.last_step);
  RealFileSystem files;
  std::optional<MetricsFolder> written;
  if (leads && !config.metrics.folder.empty())
    written.emplace(files, config.metrics.folder, end.last_step + 1);

  const std::int64_t tokens =
      std::int64_t{config.training.global_batch_size} * config.training.sequence_length;
  DeviceTimeline last;
  OpTimings timings;
  const std::int64_t first = end.last_step + 1;
  for (std::int64_t number = first; number <= config.training.steps; ++number) {
    const auto started = Clock::now();
    const StepResult result = trainer.step(number);
    const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
    const std::vector<RankFigures> ranks =
        gather_figures(result, run.stop && run.stop->load(), world);
    end.last_step = number;
    last = result.executed.timeline;
    // The first step warms up: it counts only where it is the only one.
    if (number == first + 1) timings = {};
    timings.add(last);

    StepMetrics metrics;
    metrics.step = number;
    metrics.loss = result.loss;
    metrics.grad_norm = result.gradient_norm;
    metrics.lr = result.learning_rate;
    metrics.tokens = tokens;
    metrics.step_time_s = seconds;
    metrics.tps = static_cast<double>(tokens) / seconds / world.size();
    metrics.bubble = bubble_of(ranks);
    for (const RankFigures& rank : ranks)
      metrics.peak_stash_bytes.push_back(rank.peak_bytes);
    metrics.predicted_peak_stash_bytes = run.predicted_peak_bytes;
    const std::int64_t interval = config.validation.interval;
    if (run.held_out && (number % interval == 0 || number == config.training.steps)) {
      const std::int64_t batches = std::clamp<std::int64_t>(
          run.held_out->num_samples() / config.training.global_batch_size, 1, 8);
      metrics.validation_loss = trainer.evaluate(*run.held_out, batches);
    }
    if (leads) {
      if (written) written->append(metrics);
      run.on_step(metrics);
    }
    // Whichever rank a signal reached, all stop after the same step.
    const bool stop =
        std::any_of(ranks.begin(), ranks.end(), [](const RankFigures& r) { return r.stop; });
    const bool due = config.checkpoint.interval > 0 && number % config.checkpoint.interval == 0;
    if (due || stop || number == config.training.steps) saver.save(number, run.on_note);
    if (stop && number < config.training.steps) {
      end.stopped = true;
      break;
    }
  }
  // The pipeline of rank 0 stands for the others, which do the same.
  end.devices = gather_timelines(last, trainer.mesh().pipeline());
  if (end.last_step >= first) {
    end.costs = byte_costs(staged_model(run.options, run.lowered), run.lowered);
    timings.gather_into(*end.costs, trainer.mesh().pipeline());
  }
  const std::string checkpoint = config.checkpoint.folder + "/" + step_folder_name(end.last_step);
  if (leads && !end.stopped && !config.generate.prompt.empty() && is_there(checkpoint))
    run.on_sample(sample_text(checkpoint, config.generate.prompt));
  return end;
}

}  // namespace sluice
