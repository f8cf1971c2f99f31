#include "sluice/plan/prediction.h"

#include "sluice/cost/flops.h"
#include "sluice/plan/balance.h"
#include "sluice/run/op_costs.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

// FLOP/s that one rank has at most; 0: not known. Ranks that share a GPU share its peak.
double peak_of_rank(const RunPlan& plan) {
  const double peak = 1e12 * plan.config.cluster.peak_tflops;
  const bool shared = plan.on_gpu() && plan.config.comm.backend == Backend::threads;
  return shared ? peak / plan.mesh.size() : peak;
}

}  // namespace

Prediction predict(const PlannedRun& run) {
  const RunPlan& plan = run.plan;
  Costs costs = costs_of_parts(run.times.parts, plan);
  costs.default_link = run.times.link;
  const Simulation simulation = simulate(plan.schedule, costs);
  Prediction out;
  out.bubble = simulation.bubble_rate;
  double makespan = simulation.makespan;  // of a step
  if (plan.endless) {
    const SteadyWindow step = settled_window(plan, costs);
    makespan = step.added;
    out.bubble = 1 - step.utilisation();
  }
  if (plan.ragged()) return out;  // it depends on the lengths of the sequences
  const double peak = peak_of_rank(plan);
  const TrainingConfig& training = plan.config.training;
  const auto length = static_cast<double>(training.sequence_length);
  if (run.times.measured) {
    out.step_s = makespan;
  } else if (peak > 0) {
    // Counted times are the FLOPs of one token, of which each tensor rank does its share.
    const double tokens = static_cast<double>(plan.sequences()) * length;
    out.step_s = makespan * tokens / plan.mesh.tensor / peak;
    out.lower_bound = true;
  }
  if (!out.step_s) return out;
  const double sequences = training.global_batch_size;
  out.tokens_per_s = sequences * length / *out.step_s;
  out.days = *out.step_s * static_cast<double>(training.steps) / (24 * 3600);
  if (peak > 0)
    out.mfu = step_flops(plan.shape, sequences * length, sequences * length * length) /
              (*out.step_s * peak * plan.mesh.size());
  return out;
}

}  // namespace sluice
