#include "sluice/plan/update_methods.h"

#include <algorithm>
#include <functional>

#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/plan/balance.h"
#include "sluice/plan/overlap_advice.h"
#include "sluice/schedule/staleness.h"

namespace sluice {
namespace {

struct Variant {
  std::string name, settings;
  std::function<Config()> config;  // may throw UserError
};

Config with_schedule(const RunPlan& plan, const char* name) {
  Config config = plan.config;
  config.parallelism.pipeline_parallel_schedule = name;
  config.parallelism.pipeline_parallel_schedule_csv.clear();
  config.parallelism.stages_per_device = 0;
  // Those of the run may be of another number of stages.
  if (plan.schedule.num_stages() != plan.mesh.pipeline)
    config.parallelism.layers_per_stage = {LayerRule::even, {}};
  config.asynchronous = {};
  return config;
}

std::vector<Variant> variants(const RunPlan& plan) {
  std::vector<Variant> out;
  const auto add = [&](std::string name, const char* schedule, std::string settings,
                       const std::function<void(AsynchronousConfig&)>& set) {
    std::string keys = fmt::format("parallelism.pipeline_parallel_schedule={}", schedule);
    if (!settings.empty()) keys += " " + settings;
    out.push_back({std::move(name), std::move(keys), [&plan, schedule, set] {
                     Config config = with_schedule(plan, schedule);
                     set(config.asynchronous);
                     return config;
                   }});
  };
  const auto stash = [](AsynchronousConfig& a) { a.weights = UsedWeights::stash; };
  add("1f1b", "1f1b", "", [](auto&) {});
  add("async-1f1b", "async-1f1b", "", [](auto&) {});
  add("async-1f1b, stash", "async-1f1b", "asynchronous.weights=stash", stash);
  add("pipedream-2bw", "pipedream-2bw", "", [](auto&) {});
  add("xpipe", "xpipe", "", [](auto&) {});
  for (const AmdpOrder order : {AmdpOrder::a, AmdpOrder::rounded_a, AmdpOrder::r, AmdpOrder::t}) {
    if (order == (plan.mesh.pipeline % 4 == 0 ? AmdpOrder::rounded_a : AmdpOrder::a)) continue;
    const std::string name = fmt::format("amdp {}", order);
    const std::string key = fmt::format("asynchronous.order={}", order);
    if (order == AmdpOrder::a || order == AmdpOrder::rounded_a)
      add(name + ", replicated", "amdp", key + " asynchronous.states=replicated",
          [=](AsynchronousConfig& a) {
            a.order = order;
            a.states = CopyStates::replicated;
          });
    add(name, "amdp", key, [=](AsynchronousConfig& a) { a.order = order; });
    add(name + ", stash", "amdp", key + " asynchronous.weights=stash", [=](AsynchronousConfig& a) {
      a.order = order;
      stash(a);
    });
  }
  if (plan.mesh.pipeline > 2 && plan.mesh.pipeline % 2 == 0)
    out.push_back(
        {"pp2xdp",
         fmt::format("parallelism.pipeline_parallel_schedule=async-1f1b "
                     "parallelism.pipeline_parallel_degree=2 "
                     "parallelism.data_parallel_shard_degree={} parallelism.num_microbatches={} "
                     "parallelism.layers_per_stage=auto",
                     plan.config.parallelism.data_parallel_shard_degree * plan.mesh.pipeline / 2,
                     plan.num_microbatches() / (plan.mesh.pipeline / 2)),
         [&plan] { return on_two_devices(plan); }});
  return out;
}

double step_of(const PlannedRun& run) {
  return step_time(run.plan, run.times, run.plan.layers_per_stage);
}

}  // namespace

std::vector<UpdateMethod> update_methods(const PlannedRun& run) {
  std::vector<UpdateMethod> out;
  double reference = 0;
  for (const Variant& variant : variants(run.plan)) {
    UpdateMethod& method = out.emplace_back();
    method.name = variant.name;
    method.settings = variant.settings;
    try {
      const PlannedRun other = plan_run(variant.config());
      const std::vector<RankMemory> ranks = memory_by_rank(other.plan);
      method.largest =
          *std::max_element(ranks.begin(), ranks.end(),
                            [](const auto& a, const auto& b) { return a.total() < b.total(); });
      const double step = step_of(other);
      if (reference == 0) reference = step;
      method.relative_step = step / reference;
      if (other.plan.endless) {
        const Staleness staleness = staleness_of(other.plan.schedule);
        method.max_mismatch = staleness.max_mismatch();
        method.max_delay = staleness.max_delay;
      }
    } catch (const UserError& error) {
      method.why_not = error.what();
    }
  }
  return out;
}

}  // namespace sluice
