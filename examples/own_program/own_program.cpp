// Generates a schedule, proves, simulates and draws it; then plans a training run and prints the
// memory that each rank will need. Needs no torch.
//
//   own_program CONFIG
#include <fmt/format.h>

#include "sluice/plan/plan_run.h"
#include "sluice/plan/prediction.h"
#include "sluice/plan/run_memory.h"
#include "sluice/report/dry_run.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"
#include "sluice/trace/render.h"

namespace {

void draw_schedule() {
  sluice::GeneratorOptions options;
  options.devices = 4;
  options.microbatches = 8;
  const sluice::Schedule schedule = sluice::generate_schedule("zb-v", options);
  const sluice::Validation proof = sluice::validate(schedule);
  if (!proof.valid()) throw sluice::UserError(proof.problems.front().line());

  const sluice::Costs costs = sluice::unit_costs(schedule, {.f = 1, .i = 1, .w = 1}, 0, 1);
  const sluice::Simulation simulation = sluice::simulate(schedule, costs, {.timeline = true});
  fmt::print("{}\nmakespan {}, peak {} stage-activations\n\n",
             sluice::render_grid(simulation.timeline, {}), simulation.makespan,
             simulation.max_peak);
}

void plan_run(const std::string& path) {
  sluice::Config config = sluice::load_config(path, {}).values;
  config.comm.backend = sluice::Backend::threads;
  const sluice::PlannedRun run = sluice::plan_run(config);
  fmt::print("{}", sluice::dry_run_text({.run = run,
                                         .ranks = sluice::memory_by_rank(run.plan),
                                         .prediction = sluice::predict(run),
                                         .machine_bytes = {},
                                         .fits = {},
                                         .remarks = run.notes}));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: own_program CONFIG\n");
    return 2;
  }
  try {
    draw_schedule();
    plan_run(argv[1]);
  } catch (const sluice::UserError& error) {
    fmt::print(stderr, "own_program: {}\n", error.what());
    return 2;
  }
}
