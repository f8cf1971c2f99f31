// How the values that make a schedule fit together.
#include <algorithm>
#include <cstdint>
#include <numeric>

#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/config/fields.h"
#include "sluice/config/problems.h"
#include "sluice/config/resolve.h"
#include "sluice/schedule/generators/generator.h"

namespace sluice {
namespace {

std::int64_t sum(const std::vector<int>& list) {
  return std::accumulate(list.begin(), list.end(), std::int64_t{0});
}

void check_slices(const Config& config, Problems& problems) {
  const ParallelismConfig& parallelism = config.parallelism;
  const int length = config.training.sequence_length;
  const int slices = slices_of(parallelism);
  const std::vector<int>& sizes = parallelism.slice_sizes.list;
  if (slices > 1 && is_ragged(config))
    problems.add(
        "parallelism.slices is {} and data.packing is sequences: slices are cut at the same tokens "
        "of every sequence, and these have lengths of their own; use 1, or data.packing = "
        "documents",
        slices);
  if (slices > 1 && config.model.shape == ModelFamily::bert)
    problems.add(
        "parallelism.slices is {}: bert attends in both directions, so an earlier slice would need "
        "a later one; use 1",
        slices);
  if (!sizes.empty() && parallelism.slices != 1 && parallelism.slices != slices)
    problems.add("parallelism.slice_sizes names {} slices: parallelism.slices is {}; leave one out",
                 slices, parallelism.slices);
  if (!sizes.empty() && sum(sizes) != length)
    problems.add(
        "parallelism.slice_sizes sums to {}: training.sequence_length is {}; change one of them",
        sum(sizes), length);
  const bool balanced = parallelism.slice_sizes.rule == SliceRule::balanced;
  if (balanced && slices == 1)
    problems.add(
        "parallelism.slice_sizes is balanced and parallelism.slices is 1: set parallelism.slices "
        "to "
        "2 or more, or leave the key out");
  if (!balanced && parallelism.slice_multiple != 0)
    problems.add(
        "parallelism.slice_multiple is {} and parallelism.slice_sizes is {}: only balanced slices "
        "begin at multiples; set slice_sizes = balanced, or leave the key out",
        parallelism.slice_multiple, parallelism.slice_sizes.rule);
  if (parallelism.slice_multiple > length)
    problems.add(
        "parallelism.slice_multiple is {}: a sequence has {} tokens; use a smaller multiple",
        parallelism.slice_multiple, length);
  if (sizes.empty() && slices > length)
    problems.add("parallelism.slices is {}: a sequence of {} tokens has at most {}", slices, length,
                 length);
}

// The schedule's options against what its generator reads.
void check_knobs(const Generator& generator, const Config& config, Problems& problems) {
  const ParallelismConfig& parallelism = config.parallelism;
  const Knobs& knobs = generator.knobs;
  if (knobs.block) {
    problems.add(
        "parallelism.pipeline_parallel_schedule is {}: a block of your own is written to CSV by "
        "sluice schedule; give that as parallelism.pipeline_parallel_schedule_csv",
        generator.name);
    return;
  }
  if (knobs.memory_cap && parallelism.memory_cap == 0 && memory_caps_of(parallelism).empty())
    problems.add(
        "{} needs a cap: set parallelism.device_memory_mib, or parallelism.memory_cap in "
        "stage-activations per device",
        generator.name);
  for (const std::string& problem : knob_problems(generator, generator_options(config)))
    problems.add("{}", as_keys(problem));
}

// What can be said of a list of layers before the number of stages is known.
void check_layer_list(const Config& config, Problems& problems) {
  const LayersPerStage& split = config.parallelism.layers_per_stage;
  if (split.rule != LayerRule::list) return;
  if (sum(split.list) != config.model.layers)
    problems.add("parallelism.layers_per_stage sums to {}: model.layers is {}; change one of them",
                 sum(split.list), config.model.layers);
  for (std::size_t s = 1; s + 1 < split.list.size(); ++s)
    if (split.list[s] == 0)
      problems.add(
          "parallelism.layers_per_stage gives stage {} no layer: only the first and the last, "
          "which "
          "hold embedding and head, may have none",
          s);
}

void check_caps(const ParallelismConfig& parallelism, Problems& problems) {
  const std::vector<double> caps = memory_caps_of(parallelism);
  if (caps.empty()) return;
  const int devices = parallelism.pipeline_parallel_degree;
  if (caps.size() > 1 && std::ssize(caps) != devices)
    problems.add(
        "parallelism.device_memory_mib lists {} caps, and parallelism.pipeline_parallel_degree is "
        "{}: give one number, or one per device",
        caps.size(), devices);
  for (const double cap : caps)
    if (cap == 0) {
      problems.add("parallelism.device_memory_mib has a 0 in its list: each needs to be above 0");
      break;
    }
  if (parallelism.memory_cap != 0)
    problems.add(
        "parallelism.memory_cap is {} and parallelism.device_memory_mib is set: both cap the "
        "memory of a device; leave one out",
        number(parallelism.memory_cap));
}

}  // namespace

void check_schedule(const Config& config, Problems& problems) {
  const ParallelismConfig& parallelism = config.parallelism;
  check_slices(config, problems);
  check_layer_list(config, problems);
  check_caps(parallelism, problems);
  check_asynchronous(config, problems);
  if (!parallelism.pipeline_parallel_schedule_csv.empty()) {
    if (parallelism.memory_cap != 0)
      problems.add("parallelism.memory_cap is {}: the CSV's order is fixed; leave the key out",
                   number(parallelism.memory_cap));
    if (parallelism.stages_per_device != 0)
      problems.add("parallelism.stages_per_device is {}: the CSV sets it; leave the key out",
                   parallelism.stages_per_device);
    if (parallelism.group_size != 0)
      problems.add("parallelism.group_size is {}: the CSV's order is fixed; leave the key out",
                   parallelism.group_size);
    return;
  }
  const Generator* generator = nullptr;
  try {
    generator = &find_generator(parallelism.pipeline_parallel_schedule);
  } catch (const UserError& error) {
    problems.add("parallelism.pipeline_parallel_schedule: {}", error.what());
    return;
  }
  check_knobs(*generator, config, problems);
  const std::int64_t stages_per_device = parallelism.stages_per_device
                                             ? parallelism.stages_per_device
                                             : generator->knobs.default_stages_per_device;
  if (const std::string problem =
          layers_problem(config, stages_per_device * parallelism.pipeline_parallel_degree /
                                     generator->knobs.pipes);
      !problem.empty())
    problems.add("{}", problem);
}

std::string layers_problem(const Config& config, std::int64_t stages) {
  const LayersPerStage& split = config.parallelism.layers_per_stage;
  const int layers = config.model.layers;
  if (split.rule == LayerRule::even && layers % stages != 0)
    return fmt::format(
        "model.layers is {}: does not divide by the {} stages; change it, or set "
        "parallelism.layers_per_stage to auto or to a list",
        layers, stages);
  if (split.rule == LayerRule::automatic && stages > layers + 2)
    return fmt::format(
        "model.layers is {}: too few for {} stages, even with embedding and head as stages of "
        "their own; use fewer stages",
        layers, stages);
  if (split.rule == LayerRule::list && static_cast<std::int64_t>(split.list.size()) != stages)
    return fmt::format(
        "parallelism.layers_per_stage has {} numbers, and the schedule has {} stages: give one "
        "number per stage",
        split.list.size(), stages);
  return "";
}

}  // namespace sluice
