#include "sluice/plan/balance.h"

#include <algorithm>

#include "sluice/plan/device_memory.h"
#include "sluice/run/op_costs.h"
#include "sluice/sim/simulate.h"

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

SteadyWindow settled_window(const RunPlan& plan, const Costs& costs) {
  constexpr int kMostWindows = 48;
  constexpr double kMostOps = 4e6;
  const auto settled = [&](const Schedule& windows) {
    return steady_window(windows, costs, {}, simulate(windows, costs));
  };
  if (const auto steady = settled(plan.schedule)) return *steady;
  double ops_of_window = 0;
  for (const Program& program : plan.schedule.programs)
    ops_of_window += static_cast<double>(program.size()) / plan.schedule.num_windows;
  const int most = static_cast<int>(
      std::clamp(kMostOps / ops_of_window, 1.0 * plan.schedule.num_windows, 1.0 * kMostWindows));
  int windows = std::min(2 * plan.schedule.num_windows, most);
  for (; windows < most; windows = std::min(2 * windows, most))
    if (const auto steady = settled(plan.endless->whole(windows))) return *steady;
  return mean_window(plan.endless->whole(most), costs);
}

double step_time(const RunPlan& plan, const RunTimes& times,
                 const std::vector<std::int64_t>& layers) {
  RunPlan dealt = plan;
  dealt.layers_per_stage = layers;
  Costs costs = costs_of_parts(times.parts, dealt);
  costs.default_link = times.link;
  return plan.endless ? settled_window(plan, costs).added
                      : simulate(dealt.schedule, costs).makespan;
}

}  // namespace sluice
