#include "cli/run_setup.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/balance.h"
#include "cli/price.h"
#include "runtime/ranks.h"
#include "runtime/runnable.h"
#include "runtime/weights/saved_model.h"
#include "schedule/transforms/reductions.h"
#include "schedule/transforms/split_backward.h"
#include "schedule/validate.h"

namespace sluice::cli {

LoadedConfig load_run_config(const std::string& path, std::span<const std::string> flags) {
  LoadedConfig loaded = load_config(path, flags);
  take_model_from_checkpoint(loaded);
  return loaded;
}

Schedule make_schedule(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  Schedule schedule;
  if (!parallelism.pipeline_parallel_schedule_csv.empty()) {
    schedule = read_named_schedule(parallelism.pipeline_parallel_schedule_csv);
  } else {
    GeneratorOptions options;
    options.devices = parallelism.pipeline_parallel_degree;
    options.microbatches = parallelism.num_microbatches;
    options.stages_per_device = parallelism.stages_per_device;
    options.slices = parallelism.slices;
    if (parallelism.slices > 1)
      options.slice_sizes.assign(parallelism.slice_sizes.begin(), parallelism.slice_sizes.end());
    if (parallelism.memory_cap > 0) options.memory_cap = parallelism.memory_cap;
    schedule = generate_schedule(parallelism.pipeline_parallel_schedule, options);
  }
  if (parallelism.fuse_backward) schedule = fuse_backward(pull_weight_gradients(schedule));
  Validation validation = validate(schedule);
  if (!validation.valid())
    throw UserError(fmt::format("{} is not a valid schedule: {}", schedule.name,
                                validation.problems.front().line()),
                    ExitCode::invalid_schedule);
  if (validation.lowered.num_microbatches != parallelism.num_microbatches)
    throw user_error(
        "the schedule has {} microbatches, but parallelism.num_microbatches is {}: make them equal",
        validation.lowered.num_microbatches, parallelism.num_microbatches);
  if (validation.lowered.num_devices() != parallelism.pipeline_parallel_degree)
    throw user_error(
        "the schedule has {} devices, but parallelism.pipeline_parallel_degree is {}: make them "
        "equal",
        validation.lowered.num_devices(), parallelism.pipeline_parallel_degree);
  if (const std::string problem = layers_problem(config, schedule.num_stages()); !problem.empty())
    throw UserError(problem);
  check_runnable(validation.lowered);
  const bool reduces = mesh_shape(config).data() > 1;
  return reduces ? add_reductions(validation.lowered) : std::move(validation.lowered);
}

RunSetup set_up_run(const LoadedConfig& loaded) {
  Config values = loaded.values;
  values.comm.backend = chosen_backend(values);
  if (const auto problems = validate_config(values); !problems.empty())
    throw UserError(join(problems, "; "));
  RunSetup setup;
  setup.config = resolve_config(values);
  setup.notes = config_notes(values);
  setup.schedule = make_schedule(setup.config);
  LayersPerStage& layers = setup.config.parallelism.layers_per_stage;
  if (layers.rule == "auto") {
    const auto dealt = best_partition(balance_of(setup.config, setup.schedule).query);
    layers = {.rule = "list", .list = {dealt.begin(), dealt.end()}};
  }
  setup.options = trainer_options(setup.config, setup.schedule);
  setup.memory = simulate(setup.schedule,
                          byte_costs(staged_model(setup.options, setup.schedule), setup.schedule));
  return setup;
}

}  // namespace sluice::cli
