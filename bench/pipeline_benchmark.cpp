// How close real pipelines come to their limit, on threads of one process.
//
//   bound      every rank plays its own program at the same time as the others, and finds every
//              message there already
//   time       one step through the executor, from barrier to barrier (the best of some repeats)
//   simulated  the same step from op times measured with all ranks busy
//
// bound / time is the share of perfect; bound / simulated what the schedule allows.
#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>
#include <optional>

#include "sluice/comm/threads/threads.h"
#include "sluice/plan/plan_run.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/alone.h"
#include "sluice/runtime/executor.h"
#include "sluice/runtime/profiling.h"
#include "sluice/runtime/trainer.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  int ranks = 2;
  int microbatches = 16;
  int repeats = 8;
  ModelConfig model = {.shape = ModelFamily::llama,
                       .layers = 16,
                       .dim = 256,
                       .heads = 4,
                       .ffn_dim = 704,
                       .vocab_size = 1024};
  int sequence_length = 256;
  std::vector<std::string> schedules = {"1f1b", "interleaved-1f1b", "zb-v", "v-half", "zb-v:4"};
};

// Microbatches of one sequence.
RunPlan plan_of(const Options& options, const std::string& schedule) {
  const std::size_t colon = schedule.find(':');
  Config config;
  config.model = options.model;
  config.training.sequence_length = options.sequence_length;
  config.training.global_batch_size = options.microbatches;
  config.parallelism.pipeline_parallel_degree = options.ranks;
  config.parallelism.pipeline_parallel_schedule = schedule.substr(0, colon);
  if (colon != std::string::npos) config.parallelism.slices = std::stoi(schedule.substr(colon + 1));
  config.comm.backend = Backend::threads;
  return plan_run(config).plan;
}

// One rank's stages with random tokens, and what is timed.
class Rank {
 public:
  Rank(const RunPlan& plan, Communicator& world)
      : plan_(plan),
        world_(world),
        pipeline_(make_tensor_channel(world, at::kCPU)),
        alone_(world.rank(), plan, tensor_kind(plan, at::kCPU)),
        stages_(make_stages(plan, world.rank(), {})) {
    std::map<int, Stage*> local;
    for (const auto& [number, stage] : stages_)
      local[number] = stage.get();
    for (at::Tensor* tensor : {&data_.tokens, &data_.targets})
      *tensor =
          at::randint(plan.shape.vocab_size, {1, plan.config.training.sequence_length}, at::kLong);
    data_.bounds = plan.slice_bounds();
    executor_ = std::make_unique<Executor>(plan.schedule, local, *pipeline_);
    lone_executor_ = std::make_unique<Executor>(plan.schedule, local, alone_);
  }

  // Seconds of one step, from barrier to barrier.
  double step() { return time(*executor_); }
  // Seconds of every rank's own program, likewise.
  double own_share() { return time(*lone_executor_); }

 private:
  double time(Executor& executor) {
    for (const auto& [number, stage] : stages_)
      stage->begin_step(1e-3);
    world_.barrier();
    const auto start = Clock::now();
    executor.run([this](int) -> const Microbatch& { return data_; }, plan_.shape.dim, at::kFloat,
                 start);
    world_.barrier();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  const RunPlan& plan_;
  Communicator& world_;
  std::unique_ptr<TensorChannel> pipeline_;
  Alone alone_;
  std::map<int, std::unique_ptr<Stage>> stages_;
  Microbatch data_;
  std::unique_ptr<Executor> executor_, lone_executor_;
};

struct Measured {
  double bound = 0, time = 0;
  std::optional<Costs> costs;
};

// Bound and step take turns, so that both see the machine at its best once.
Measured measure(const Options& options, const RunPlan& plan) {
  Measured all;
  run_threads(options.ranks, {}, [&](Communicator& world) {
    at::set_num_threads(1);
    Rank rank(plan, world);
    Measured mine{rank.own_share(), rank.step(), {}};
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      mine.bound = std::min(mine.bound, rank.own_share());
      mine.time = std::min(mine.time, rank.step());
    }
    mine.costs = profile_ops(plan, {}, world);
    if (world.rank() == 0) all = std::move(mine);
  });
  return all;
}

void report(const Options& options, const std::string& name) {
  const RunPlan plan = plan_of(options, name);
  const Measured measured = measure(options, plan);
  const Simulation simulation = simulate(plan.schedule, *measured.costs);
  const double limit = simulation.ideal / simulation.makespan;
  const double reached = measured.bound / measured.time;
  fmt::print(
      "sluice {:22s} s={:.3f} bound/time={:.3f} bound_s={:.3f} limit={:.3f} reached/limit={:.3f} "
      "simulated_s={:.3f} time/simulated={:.3f}\n",
      name, measured.time, reached, measured.bound, limit, reached / limit, simulation.makespan,
      measured.time / simulation.makespan);
  std::fflush(stdout);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Options options;
  CLI::App app("pipelines of real work against their limit");
  app.add_option("--ranks", options.ranks);
  app.add_option("--microbatches", options.microbatches);
  app.add_option("--repeats", options.repeats);
  app.add_option("--layers", options.model.layers);
  app.add_option("--dim", options.model.dim);
  app.add_option("--ffn", options.model.ffn_dim);
  app.add_option("--vocab", options.model.vocab_size);
  app.add_option("--seq", options.sequence_length);
  app.add_option("--schedules", options.schedules, "NAME or NAME:SLICES")->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  sluice::keep_freed_memory();
  try {
    for (const std::string& schedule : options.schedules)
      sluice::report(options, schedule);
  } catch (const std::exception& error) {
    fmt::print(stderr, "pipeline_benchmark: {}\n", error.what());
    return 1;
  }
  return 0;
}
