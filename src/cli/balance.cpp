#include "cli/balance.h"

#include "base/error.h"
#include "base/say.h"
#include "base/text.h"
#include "cli/dry_run.h"
#include "cli/options.h"
#include "plan/device_memory.h"
#include "runtime/options.h"
#include "runtime/ranks.h"
#include "sim/simulate.h"

namespace sluice::cli {
namespace {

PartWork part_work(const PartTimes& times, const Schedule& schedule) {
  const bool split = schedule.has(OpKind::I);
  const auto sum = [&](const PartTimes::Ops& ops) {
    return ops.f + (split ? ops.i + ops.w : ops.b);
  };
  return {sum(times.layer), sum(times.embedding), sum(times.head)};
}

void check_measured_on(const MeasuredOn& measured, const MeasuredOn& run) {
  if (const auto found = measured_differences(measured, run); !found.empty())
    throw user_error("{}; measure again (sluice profile) or correct the configuration",
                     join(found, ", "));
}

}  // namespace

Balance balance_of(const Config& config, const Schedule& schedule) {
  Balance balance;
  Config open = config;
  open.parallelism.layers_per_stage = {
      "list", std::vector<int>(static_cast<std::size_t>(schedule.num_stages()), 0)};
  const TrainerOptions options = trainer_options(open, schedule);
  balance.model = staged_model(options, schedule);
  balance.times =
      counted_part_times(balance.model.shape, balance.model.level, balance.model.sequence_length);
  if (const std::string& file = config.parallelism.partition_costs; !file.empty()) {
    try {
      const Costs profile = stage_costs_from_json(read_file(file, kMaxCostsBytes));
      if (profile.measured_on)
        check_measured_on(*profile.measured_on, measured_on(options, schedule));
      balance.times = measured_part_times(profile, balance.times);
      if (!profile.measured_on && prints_for_all())
        say("sluice: {}\n", measured_on_note(file, profile));
      balance.link = profile.default_link;
      balance.measured = true;
    } catch (const UserError& error) {
      throw UserError(fmt::format("parallelism.partition_costs is '{}': {}", file, error.what()),
                      error.code());
    }
  }
  balance.query.placement = schedule.placement;
  balance.query.layers = config.model.layers;
  balance.query.work = part_work(balance.times, schedule);
  balance.query.memory = memory_of_devices(balance.model, schedule, [&](const WeightBytes& held) {
    const BesideWeights beside = beside_weights(options, schedule, held);
    return held.weights + held.gradients + held.optimizer + beside.reduction + beside.rollback;
  });
  balance.query.memory_cap = config.parallelism.device_memory_mib * (1 << 20);
  return balance;
}

double step_time(const Balance& balance, const Schedule& schedule,
                 const std::vector<std::int64_t>& layers) {
  StagedModel model = balance.model;
  model.layers_per_stage = layers;
  Costs costs = costs_of_parts(balance.times, model, schedule);
  costs.default_link = balance.link;
  return simulate(schedule, costs).makespan;
}

}  // namespace sluice::cli
