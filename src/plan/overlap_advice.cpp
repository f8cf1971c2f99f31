#include "sluice/plan/overlap_advice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "sluice/base/error.h"
#include "sluice/plan/balance.h"

namespace sluice {
namespace {

constexpr double kBalanced = 1.05;  // the busiest device's work, relative to the mean
constexpr double kFaster = 1.03;    // what is worth naming

struct Better {
  std::vector<std::int64_t> layers;
  double speed = 1;  // how many times as fast
};

std::optional<Better> faster(std::vector<std::int64_t> layers, double before, double after) {
  if (after <= 0 || before < kFaster * after) return std::nullopt;
  return Better{std::move(layers), before / after};
}

std::optional<Better> better_layers(const RunPlan& plan, const RunTimes& times, double step) {
  try {
    const std::vector<std::int64_t> layers = best_partition(partition_query(plan, times));
    return faster(layers, step, step_time(plan, times, layers));
  } catch (const UserError&) {
    return std::nullopt;  // no other split is possible
  }
}

std::optional<Better> two_devices(const RunPlan& plan, double step) {
  if (plan.mesh.pipeline <= 2 || plan.mesh.pipeline % 2 != 0) return std::nullopt;
  try {
    const PlannedRun other = plan_run(on_two_devices(plan));
    return faster(other.plan.layers_per_stage, step,
                  step_time(other.plan, other.times, other.plan.layers_per_stage));
  } catch (const UserError&) {
    return std::nullopt;  // the microbatches or the layers do not allow it
  }
}

}  // namespace

Config on_two_devices(const RunPlan& plan) {
  const int pipelines = plan.mesh.pipeline / 2;
  Config config = plan.config;
  ParallelismConfig& parallelism = config.parallelism;
  parallelism.pipeline_parallel_schedule = "async-1f1b";
  parallelism.pipeline_parallel_schedule_csv.clear();
  parallelism.pipeline_parallel_degree = 2;
  parallelism.stages_per_device = 0;
  parallelism.data_parallel_shard_degree *= pipelines;
  if (parallelism.num_microbatches % pipelines != 0)
    throw user_error(
        "parallelism.num_microbatches is {}: {} pipelines of two devices need a multiple",
        parallelism.num_microbatches, pipelines);
  parallelism.num_microbatches /= pipelines;
  parallelism.layers_per_stage = {LayerRule::automatic, {}};
  config.asynchronous = {};
  return config;
}

std::string unbalanced_note(const RunPlan& plan, const RunTimes& times) {
  if (!plan.endless) return "";
  const std::vector<double> work = device_work(partition_query(plan, times), plan.layers_per_stage);
  const auto busiest = std::max_element(work.begin(), work.end());
  const double mean =
      std::accumulate(work.begin(), work.end(), 0.0) / static_cast<double>(work.size());
  if (*busiest <= kBalanced * mean) return "";
  std::string note = fmt::format(
      "the stages are unbalanced: device {} works {:.2f} times as long as the mean device, and all "
      "others wait for it",
      busiest - work.begin(), *busiest / mean);
  const double step = step_time(plan, times, plan.layers_per_stage);
  if (const auto better = better_layers(plan, times, step))
    note += fmt::format("; parallelism.layers_per_stage = [{}] makes a step {:.2f} times as fast",
                        fmt::join(better->layers, ", "), better->speed);
  if (const auto better = two_devices(plan, step))
    note += fmt::format(
        "; async-1f1b on 2 devices x {} data ranks with parallelism.layers_per_stage = [{}] makes "
        "it "
        "{:.2f} times as fast",
        plan.mesh.data() * plan.mesh.pipeline / 2, fmt::join(better->layers, ", "), better->speed);
  return note;
}

std::vector<std::string> advised_notes(const PlannedRun& run) {
  std::vector<std::string> notes = run.notes;
  if (std::string note = unbalanced_note(run.plan, run.times); !note.empty())
    notes.push_back(std::move(note));
  return notes;
}

}  // namespace sluice
