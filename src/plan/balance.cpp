#include "sluice/plan/balance.h"

#include "sluice/plan/device_memory.h"
#include "sluice/run/op_costs.h"
#include "sluice/sim/simulate.h"
#include "sluice/sim/steady.h"

namespace sluice {
namespace {

PartWork part_work(const PartTimes& times, const Schedule& schedule) {
  const bool split = schedule.has(OpKind::I);
  const auto sum = [&](const PartTimes::Ops& ops) {
    return ops.f + (split ? ops.i + ops.w : ops.b);
  };
  return {sum(times.layer), sum(times.embedding), sum(times.head)};
}

}  // namespace

PartitionQuery partition_query(const RunPlan& plan, const RunTimes& times) {
  PartitionQuery query;
  query.placement = plan.schedule.placement;
  query.layers = plan.shape.layers;
  query.work = part_work(times.parts, plan.schedule);
  query.memory = memory_of_devices(plan);
  for (const double mebibytes : plan.config.parallelism.device_memory_mib)
    query.memory_caps.push_back(mebibytes * (1 << 20));
  return query;
}

double step_time(const RunPlan& plan, const RunTimes& times,
                 const std::vector<std::int64_t>& layers) {
  RunPlan dealt = plan;
  dealt.layers_per_stage = layers;
  Costs costs = costs_of_parts(times.parts, dealt);
  costs.default_link = times.link;
  const Simulation simulation = simulate(dealt.schedule, costs);
  if (!plan.endless) return simulation.makespan;
  const auto steady = steady_window(dealt.schedule, costs, {}, simulation);
  return steady ? steady->added : simulation.makespan / dealt.schedule.num_windows;
}

}  // namespace sluice
