#include "cli/run_setup.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/price.h"
#include "cost/stash.h"
#include "schedule/transforms/split_backward.h"
#include "schedule/validate.h"

namespace sluice::cli {
namespace {

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
    if (parallelism.memory_cap > 0) options.memory_cap = parallelism.memory_cap;
    schedule = generate_schedule(parallelism.pipeline_parallel_schedule, options);
    if (schedule.num_slices > 1)
      schedule.slice_sizes.assign(parallelism.slice_sizes.begin(), parallelism.slice_sizes.end());
  }
  if (parallelism.fuse_backward) schedule = fuse_backward(schedule);
  Validation validation = validate(schedule);
  if (!validation.valid())
    throw UserError(fmt::format("{} is not a valid schedule: {}", schedule.name,
                                validation.problems.front().line()),
                    ExitCode::invalid_schedule);
  if (validation.lowered.num_microbatches != parallelism.num_microbatches)
    throw user_error("the schedule has {} microbatches and parallelism.num_microbatches is {}",
                     validation.lowered.num_microbatches, parallelism.num_microbatches);
  if (validation.lowered.num_devices() != parallelism.pipeline_parallel_degree)
    throw user_error("the schedule has {} devices and parallelism.pipeline_parallel_degree is {}",
                     validation.lowered.num_devices(), parallelism.pipeline_parallel_degree);
  return std::move(validation.lowered);
}

}  // namespace

Costs stash_costs(const Config& config, const Schedule& schedule, const TrainerOptions& options) {
  std::vector<OpCosts> table;
  const std::int64_t sequences = config.training.global_batch_size / schedule.num_microbatches;
  for (int stage = 0; stage < schedule.num_stages(); ++stage)
    for (int slice = 0; slice < schedule.num_slices; ++slice) {
      const std::int64_t length = schedule.slice_sizes.empty()
                                      ? config.training.sequence_length
                                      : schedule.slice_sizes[static_cast<std::size_t>(slice)];
      const StashQuery query{.shape = options.shape,
                             .level = options.level,
                             .tokens = sequences * length,
                             .element_bytes = options.dtype == at::kFloat ? 4 : 2,
                             .sliced = schedule.num_slices > 1};
      const auto blocks =
          static_cast<double>(options.layers_per_stage[static_cast<std::size_t>(stage)]);
      const StashBytes block = block_stash(query);
      OpCosts costs;
      costs.f = costs.i = costs.w = 1;
      costs.b = 2;
      costs.after_f = blocks * static_cast<double>(block.after_f);
      costs.after_i = blocks * static_cast<double>(block.after_i);
      costs.kv_gradient =
          blocks * static_cast<double>(key_value_gradient_bytes(options.shape, query.tokens));
      for (const auto& [has, end] :
           {std::pair{stage == 0, embedding_stash(query)},
            std::pair{stage == schedule.num_stages() - 1, head_stash(query)}})
        if (has) {
          costs.after_f += static_cast<double>(end.after_f);
          costs.after_i += static_cast<double>(end.after_i);
        }
      table.push_back(costs);
    }
  Costs costs(schedule.num_stages(), schedule.num_slices, std::move(table));
  costs.measured = true;
  return costs;
}

RunSetup set_up_run(const LoadedConfig& loaded) {
  if (const auto problems = validate_config(loaded.values); !problems.empty())
    throw UserError(join(problems, "; "));
  RunSetup setup;
  setup.config = resolve_config(loaded.values);
  setup.schedule = make_schedule(setup.config);
  setup.options = trainer_options(setup.config, setup.schedule);
  setup.memory = simulate(setup.schedule, stash_costs(setup.config, setup.schedule, setup.options));
  return setup;
}

}  // namespace sluice::cli
