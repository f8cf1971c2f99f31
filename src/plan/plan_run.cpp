#include "sluice/plan/plan_run.h"

#include <fmt/ranges.h>

#include <filesystem>

#include "sluice/base/error.h"
#include "sluice/base/files.h"
#include "sluice/base/text.h"
#include "sluice/config/model.h"
#include "sluice/cost/profiled_slices.h"
#include "sluice/plan/balance.h"
#include "sluice/plan/flexsp/run_cluster.h"
#include "sluice/plan/searched_schedule.h"
#include "sluice/run/step_kinds.h"
#include "sluice/schedule/generators/generator.h"

namespace sluice {
namespace {

// Slices of as much work: by a profile of at least two slices, else by FLOPs.
std::vector<std::int64_t> balanced_slices(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  const bool gpu = config.cluster.device == DeviceKind::cuda;
  const int multiple = parallelism.slice_multiple ? parallelism.slice_multiple : gpu ? 128 : 1;
  const bool shared = parallelism.sequence_parallel_norms;
  const BalancedSlicing slicing{.length = config.training.sequence_length,
                                .slices = parallelism.slices,
                                .multiple = multiple,
                                .tensor = shared ? parallelism.tensor_parallel_degree : 1};
  try {
    if (!parallelism.costs.empty()) {
      const Costs profile = stage_costs_from_json(read_text(parallelism.costs, kMaxCostsBytes));
      if (profile.slice_sizes.size() > 1)
        return balanced_slice_sizes(fitted_terms(profile, profile.slice_sizes), slicing);
    }
    return balanced_slice_sizes(model_shape(config), config.recompute.level, slicing);
  } catch (const UserError& error) {
    throw UserError(fmt::format("parallelism.slice_sizes is balanced: {}", error.what()),
                    error.code());
  }
}

// The batch plans that a configuration names; null: none. Theirs is the number of microbatches
// where the configuration gives none.
std::shared_ptr<BatchPlans> read_batch_plans(Config& config) {
  const std::string& path = config.flexsp.plan_file;
  if (path.empty()) return nullptr;
  const MeshShape mesh = mesh_of(config);
  const BatchLimits limits{config.training.global_batch_size, mesh.data(),
                           config.model.heads / mesh.tensor};
  auto plans = std::make_shared<BatchPlans>();
  plans->name = path;
  const auto text = [&] {
    try {
      return read_text(path, kMaxBatchPlanBytes);
    } catch (const UserError& error) {
      // A file that is there and is no text is bad data.
      std::error_code ignored;
      if (error.code() != ExitCode::usage || !std::filesystem::is_regular_file(path, ignored))
        throw;
      throw UserError(error.what(), ExitCode::bad_data);
    }
  };
  plans->steps = parse_batch_plans(text(), path, limits);
  // What no step of this run uses shall not count.
  const std::int64_t first = plans->steps.begin()->first, last = config.training.steps;
  std::erase_if(plans->steps, [&](const auto& entry) { return entry.first > last; });
  if (plans->steps.empty())
    throw bad_data("{}: its first plan is for step {}, and training.steps is {}", path, first,
                   last);
  count_shares(*plans, mesh, config.training.sequence_length);
  int& microbatches = config.parallelism.num_microbatches;
  if (microbatches == 0) microbatches = plans->steps.begin()->second.plan.num_microbatches();
  return plans;
}

// Calls `make`, which makes a schedule for the number of microbatches of a planned step. The
// configuration did not set that number, so its errors name the step.
template <typename Make>
auto made_for_step(const BatchPlans& plans, std::int64_t step, const Config& config,
                   const Make& make) {
  const int count = config.parallelism.num_microbatches;
  const std::string key = fmt::format("parallelism.num_microbatches is {}: ", count);
  try {
    return make();
  } catch (const UserError& error) {
    const std::string_view why = error.what();
    throw UserError(
        fmt::format("{}: step {} has {}: {}", plans.name, step, counted(count, "microbatch"),
                    why.starts_with(key) ? why.substr(key.size()) : why),
        error.code());
  }
}

// Schedules for the other numbers of microbatches that batch plans have.
void add_schedules(const RunPlan& plan, const RunTimes& times, BatchPlans& plans) {
  for (const auto& [step, batch] : plans.steps) {
    const int count = batch.plan.num_microbatches();
    if (count == plan.schedule.num_microbatches || plans.schedules.contains(count)) continue;
    Config config = plan.config;
    config.parallelism.num_microbatches = count;
    plans.schedules.emplace(count, made_for_step(plans, step, config, [&] {
                              return schedule_with(plan, times, count);
                            }));
  }
}

// What planned batches may hold, and what of it is worth a note.
void add_cluster(PlannedRun& run) {
  const flexsp::RunCluster made = flexsp::run_cluster(run.plan, run.times);
  run.plan.most_planned = made.most;
  run.notes.push_back(
      fmt::format("batches are planned by parallelism.costs, in groups of {} with at most {} each",
                  flexsp::ranks_text(made.cluster.degrees), counted(made.most.tokens, "token")));
  for (const flexsp::ExcludedDegree& excluded : made.excluded)
    run.notes.push_back(
        fmt::format("no group has {}: {}", counted(excluded.degree, "data rank"), excluded.reason));
}

}  // namespace

Schedule schedule_with(const RunPlan& plan, const RunTimes& times, int num_microbatches) {
  Config config = plan.config;
  config.parallelism.num_microbatches = num_microbatches;
  if (const std::string& csv = config.parallelism.pipeline_parallel_schedule_csv; !csv.empty())
    throw user_error(
        "the schedule in {} has {}, and no other number; plan as many, or name a schedule", csv,
        plan.schedule.num_microbatches);
  RunPlan other = make_plan(config, first_schedule(config));
  other.batch_plans = plan.batch_plans;
  other.most_planned = plan.most_planned;
  std::vector<std::string> notes;  // those of the plan itself are enough
  if (is_searched(config)) search_schedule(other, times, notes);
  return std::move(other.schedule);
}

PlannedRun plan_open_run(const Config& given) {
  if (const auto problems = validate_config(given); !problems.empty())
    throw UserError(join(problems, "; "));
  Config config = given;
  const std::shared_ptr<BatchPlans> batch_plans = read_batch_plans(config);
  Config resolved = resolve_config(config);
  if (SliceSizes& sizes = resolved.parallelism.slice_sizes; sizes.rule == SliceRule::balanced) {
    const std::vector<std::int64_t> balanced = balanced_slices(resolved);
    sizes = {SliceRule::list, {balanced.begin(), balanced.end()}};
  }
  const bool as_planned = batch_plans && given.parallelism.num_microbatches == 0;
  const auto first = [&] {
    Schedule schedule = first_schedule(resolved);
    if (schedule.num_microbatches != resolved.parallelism.num_microbatches && as_planned)
      throw user_error("the schedule in {} has {}; plan as many, or name a schedule",
                       resolved.parallelism.pipeline_parallel_schedule_csv,
                       schedule.num_microbatches);
    return schedule;
  };
  Schedule schedule =
      as_planned ? made_for_step(*batch_plans, batch_plans->steps.begin()->first, resolved, first)
                 : first();
  LayersPerStage& layers = resolved.parallelism.layers_per_stage;
  const LayersPerStage wanted = layers;
  PlannedRun run;
  run.notes = config_notes(given);
  const auto num_stages = static_cast<std::size_t>(schedule.num_stages());
  if (const std::string problem = layers_problem(resolved, schedule.num_stages()); !problem.empty())
    throw UserError(problem);
  layers = {LayerRule::list, std::vector<int>(num_stages, 0)};
  run.plan = make_plan(resolved, std::move(schedule));
  run.plan.batch_plans = batch_plans;
  run.plan.config.parallelism.layers_per_stage = wanted;
  run.times = run_times(run.plan);
  if (!run.times.note.empty()) run.notes.push_back(run.times.note);
  return run;
}

Config without_batch_plans(Config config) {
  if (config.parallelism.num_microbatches == 0) read_batch_plans(config);
  config.flexsp.plan_file.clear();
  return config;
}

PlannedRun plan_run(const Config& config) {
  PlannedRun run = plan_open_run(config);
  RunPlan& plan = run.plan;
  LayersPerStage& layers = plan.config.parallelism.layers_per_stage;
  switch (layers.rule) {
    case LayerRule::even:
      plan.layers_per_stage = even_layers(plan.shape.layers, plan.schedule.num_stages());
      break;
    case LayerRule::list:
      plan.layers_per_stage.assign(layers.list.begin(), layers.list.end());
      break;
    case LayerRule::automatic: {
      PartitionQuery query = partition_query(plan, run.times);
      // Layers first, by their work alone; the order is then searched under the cap.
      if (is_searched(plan.config) &&
          find_generator(plan.config.parallelism.pipeline_parallel_schedule).knobs.memory_cap)
        query.memory_caps.clear();
      plan.layers_per_stage = best_partition(query);
      layers = {LayerRule::list, {plan.layers_per_stage.begin(), plan.layers_per_stage.end()}};
      break;
    }
  }
  if (is_searched(plan.config)) search_schedule(plan, run.times, run.notes);
  if (plan.batch_plans) {
    auto plans = std::make_shared<BatchPlans>(*plan.batch_plans);
    add_schedules(plan, run.times, *plans);
    plan.batch_plans = std::move(plans);
  }
  if (plan.config.flexsp.enabled) add_cluster(run);
  plan.peak_stash_bytes = predicted_peaks(plan);
  if (const double most = plan.config.training.max_norm; plan.clips_by_previous_norm() && most > 0)
    run.notes.push_back(fmt::format(
        "{} updates each stage by itself: training.max_norm = {} clips by the gradient norm of the "
        "step before, and the first step not at all",
        plan.schedule.name, most));
  return run;
}

}  // namespace sluice
