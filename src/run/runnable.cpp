#include "sluice/run/runnable.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/config/resolve.h"
#include "sluice/config/schema.h"

namespace sluice {

void check_runnable(const Schedule& schedule) {
  std::vector<bool> owns(static_cast<std::size_t>(schedule.num_devices()), false);
  for (int stage = 0; stage < schedule.num_stages(); ++stage)
    owns[static_cast<std::size_t>(schedule.owner_of(stage))] = true;
  if (const auto idle = std::find(owns.begin(), owns.end(), false); idle != owns.end())
    throw user_error(
        "{} has no stage of pipe 0 on device {}: there each stage is saved and its norm counted; "
        "let pipe 0 pass through every device",
        schedule.name, idle - owns.begin());
}

namespace {

// The prediction looks ahead along the moments of whole weights.
void check_prediction(const Config& config, const Schedule& schedule) {
  if (const OptimizerKind kind = config.optimizer.name;
      kind != OptimizerKind::adamw && kind != OptimizerKind::nadam)
    throw user_error(
        "optimizer.name is {}: {} predicts weights from two moments; use adamw or nadam", kind,
        schedule.name);
  if (const int degree = config.parallelism.data_parallel_shard_degree; degree > 1)
    throw user_error(
        "parallelism.data_parallel_shard_degree is {}: {} predicts whole weights, and a rank would "
        "have the moments of some rows only; use data_parallel_replicate_degree instead",
        degree, schedule.name);
}

}  // namespace

void check_goes_on(const Config& config, const Schedule& schedule) {
  if (schedule.weights == WeightVersions::predicted) check_prediction(config, schedule);
  const ParallelismConfig& parallelism = config.parallelism;
  const bool from_csv = !parallelism.pipeline_parallel_schedule_csv.empty();
  const auto refuse = [&](std::string_view given, std::string_view why) {
    throw user_error("{}: {} goes on to the next step before one is updated, {}", given,
                     schedule.name, why);
  };
  if (parallelism.deferred_validation)
    refuse("parallelism.deferred_validation is true",
           "and its update could not be taken back; leave the key out");
  if (schedule.num_slices > 1)
    refuse(fmt::format("the schedule has {} slices", schedule.num_slices),
           "and keys and values of slices would be of different weights; use 1");
  if (parallelism.sharding == Sharding::parameters && parallelism.data_parallel_shard_degree > 1)
    refuse("parallelism.sharding is parameters",
           "and keeps every version of the weights whole; use states");
  if (is_ragged(config))
    refuse("data.packing is sequences",
           fmt::format("with as many tokens in each; use stream or documents{}",
                       from_csv ? "" : ", or asynchronous.flush = true"));
  if (parallelism.fuse_backward)
    refuse("parallelism.fuse_backward is true",
           "and its order is fixed; write the CSV by sluice schedule --backward fused");
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (const std::int64_t size = schedule.window_size(); config.training.steps > kMost / size)
    throw user_error(
        "training.steps is {}: {} numbers its microbatches through, {} in each step, and the "
        "largest number is {}; take at most {} steps, or fewer microbatches",
        config.training.steps, schedule.name, size, kMost, kMost / size);
}

void check_ahead(const EndlessSchedule& endless, const Schedule& schedule) {
  if (endless.ahead() > 1 && schedule.weights == WeightVersions::predicted)
    throw user_error(
        "{} begins a window {} updates before its own, and weights are predicted by one update "
        "only: give each window more microbatches",
        schedule.name, endless.ahead());
}

void check_ends(const Config& config, const Schedule& schedule) {
  if (config.parallelism.pipeline_parallel_schedule_csv.empty()) return;
  for (const std::string& key : given_asynchronous_keys(config))
    throw user_error(
        "{}, and {} has one window, so every step ends before the next begins: leave the key out, "
        "or give a CSV with several windows",
        key, schedule.name);
}

}  // namespace sluice
