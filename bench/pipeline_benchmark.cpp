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

#include "base/error.h"
#include "comm/threads/threads.h"
#include "runtime/allocator.h"
#include "runtime/alone.h"
#include "runtime/executor.h"
#include "runtime/profiling.h"
#include "runtime/trainer.h"
#include "schedule/generators/generator.h"
#include "schedule/validate.h"
#include "sim/simulate.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  int ranks = 2;
  int microbatches = 16;
  int repeats = 8;
  ModelShape shape;
  std::int64_t sequence_length = 256;
  std::vector<std::string> schedules = {"1f1b", "interleaved-1f1b", "zb-v", "v-half", "zb-v:4"};
};

Schedule lowered_schedule(const Options& options, const std::string& text) {
  const std::size_t colon = text.find(':');
  GeneratorOptions request;
  request.devices = options.ranks;
  request.microbatches = options.microbatches;
  if (colon != std::string::npos) request.slices = std::stoi(text.substr(colon + 1));
  Validation validation = validate(generate_schedule(text.substr(0, colon), request));
  if (!validation.valid()) throw user_error("{}: {}", text, validation.problems.front().line());
  return std::move(validation.lowered);
}

// One rank's stages with random tokens, and what is timed.
class Rank {
 public:
  Rank(const TrainerOptions& options, const Schedule& schedule, Communicator& world)
      : options_(options),
        world_(world),
        alone_(world, options, schedule.num_microbatches),
        bounds_(slice_bounds(schedule, options.sequence_length)),
        stages_(make_stages(options, schedule, world.rank())) {
    std::map<int, Stage*> local;
    for (const auto& [number, stage] : stages_)
      local[number] = stage.get();
    data_.tokens = at::randint(options.shape.vocab_size, {1, options.sequence_length}, at::kLong);
    data_.targets = at::randint(options.shape.vocab_size, {1, options.sequence_length}, at::kLong);
    executor_ = std::make_unique<Executor>(schedule, local, world);
    lone_executor_ = std::make_unique<Executor>(schedule, local, alone_);
  }

  // Seconds of one step, from barrier to barrier.
  double step() { return time(*executor_); }
  // Seconds of every rank's own program, likewise.
  double own_share() { return time(*lone_executor_); }

 private:
  double time(Executor& executor) {
    for (const auto& [number, stage] : stages_)
      stage->begin_step(bounds_, 1e-3);
    world_.barrier();
    const auto start = Clock::now();
    executor.run([this](int) -> const Microbatch& { return data_; }, bounds_, options_.shape.dim,
                 at::kFloat, start);
    world_.barrier();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  const TrainerOptions& options_;
  Communicator& world_;
  Alone alone_;
  SliceBounds bounds_;
  std::map<int, std::unique_ptr<Stage>> stages_;
  Microbatch data_;
  std::unique_ptr<Executor> executor_, lone_executor_;
};

struct Measured {
  double bound = 0, time = 0;
  std::optional<Costs> costs;
};

// Bound and step take turns, so that both see the machine at its best once.
Measured measure(const Options& options, const Schedule& schedule) {
  TrainerOptions trainer;
  trainer.shape = options.shape;
  trainer.layers_per_stage = even_layers(options.shape.layers, schedule.num_stages());
  trainer.global_batch_size = options.microbatches;
  trainer.sequence_length = options.sequence_length;
  Measured all;
  run_threads(options.ranks, {}, [&](Communicator& world) {
    at::set_num_threads(1);
    Rank rank(trainer, schedule, world);
    Measured mine{rank.own_share(), rank.step(), {}};
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      mine.bound = std::min(mine.bound, rank.own_share());
      mine.time = std::min(mine.time, rank.step());
    }
    mine.costs = profile_ops(trainer, schedule, world);
    if (world.rank() == 0) all = std::move(mine);
  });
  return all;
}

void report(const Options& options, const std::string& name) {
  const Schedule schedule = lowered_schedule(options, name);
  const Measured measured = measure(options, schedule);
  const Simulation simulation = simulate(schedule, *measured.costs);
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
  options.shape.family = sluice::ModelFamily::llama;
  options.shape.layers = 16;
  options.shape.dim = 256;
  options.shape.heads = options.shape.kv_heads = 4;
  options.shape.ffn_dim = 704;
  options.shape.vocab_size = 1024;
  CLI::App app("pipelines of real work against their limit");
  app.add_option("--ranks", options.ranks);
  app.add_option("--microbatches", options.microbatches);
  app.add_option("--repeats", options.repeats);
  app.add_option("--layers", options.shape.layers);
  app.add_option("--dim", options.shape.dim);
  app.add_option("--ffn", options.shape.ffn_dim);
  app.add_option("--vocab", options.shape.vocab_size);
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
