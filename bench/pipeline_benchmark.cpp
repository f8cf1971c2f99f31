// How close real pipelines come to their limit, on threads of one process.
//
//   bound      every rank computes its own share at the same time as the others, without messages
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
#include <mutex>

#include "base/error.h"
#include "comm/threads/threads.h"
#include "runtime/executor.h"
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
  int repeats = 5;
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

// One rank's stages with random tokens, and the three things that are timed.
class Rank {
 public:
  Rank(const Options& options, const Schedule& schedule, Communicator& world)
      : options_(options), schedule_(schedule), world_(world) {
    const auto layers = even_layers(options.shape.layers, schedule.num_stages());
    for (int slice = 0; slice <= schedule.num_slices; ++slice)
      bounds_.push_back(options.sequence_length * slice / schedule.num_slices);
    std::int64_t first = 0;
    std::map<int, Stage*> local;
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      const std::int64_t end = first + layers[static_cast<std::size_t>(stage)];
      if (schedule.placement.device_of(0, stage) == world.rank()) {
        StageOptions own;
        own.shape = options.shape;
        own.first_layer = first;
        own.end_layer = end;
        own.embedding = stage == 0;
        own.head = stage == schedule.num_stages() - 1;
        stages_[stage] = std::make_unique<Stage>(own);
        local[stage] = stages_[stage].get();
      }
      first = end;
    }
    data_.tokens = at::randint(options.shape.vocab_size, {1, options.sequence_length}, at::kLong);
    data_.targets = at::randint(options.shape.vocab_size, {1, options.sequence_length}, at::kLong);
    executor_ = std::make_unique<Executor>(schedule, local, world);
  }

  // Seconds of one step, from barrier to barrier.
  double step() {
    begin();
    const auto start = barrier();
    executor_->run([this](int) -> const Microbatch& { return data_; }, bounds_, options_.shape.dim,
                   at::kFloat, start);
    return seconds(start, barrier());
  }

  // Seconds of every rank's own share, likewise.
  double own_share() {
    begin();
    const auto start = barrier();
    for (int m = 0; m < schedule_.num_microbatches; ++m)
      for (const auto& [number, stage] : stages_)
        share(number, *stage, m, nullptr);
    return seconds(start, barrier());
  }

  // Op times of every stage and slice while the other ranks are as busy.
  std::map<std::pair<int, int>, OpCosts> profile(int rounds) {
    std::map<std::pair<int, int>, std::vector<OpCosts>> samples;
    begin();
    barrier();
    for (int round = 0; round < rounds; ++round)
      for (const auto& [number, stage] : stages_)
        share(number, *stage, 0, &samples);
    barrier();
    std::map<std::pair<int, int>, OpCosts> out;
    for (auto& [key, list] : samples) {
      const auto median = [&](double OpCosts::*field) {
        std::vector<double> values;
        for (const OpCosts& sample : list)
          values.push_back(sample.*field);
        std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                         values.end());
        return values[values.size() / 2];
      };
      OpCosts& costs = out[key];
      costs.f = median(&OpCosts::f);
      costs.i = median(&OpCosts::i);
      costs.w = median(&OpCosts::w);
      costs.b = costs.i + costs.w;
    }
    return out;
  }

 private:
  static double seconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }

  Clock::time_point barrier() {
    world_.barrier();
    return Clock::now();
  }

  void begin() {
    for (const auto& [number, stage] : stages_)
      stage->begin_step(bounds_, 1e-3);
  }

  void share(int number, Stage& stage, int m,
             std::map<std::pair<int, int>, std::vector<OpCosts>>* samples) {
    std::vector<OpCosts> costs(static_cast<std::size_t>(schedule_.num_slices));
    const auto timed = [&](double& into, auto&& op) {
      const auto start = Clock::now();
      op();
      into = seconds(start, Clock::now());
    };
    const bool last = number == schedule_.num_stages() - 1;
    const auto activation = [&](int slice) {
      const auto c = static_cast<std::size_t>(slice);
      return at::randn({bounds_[c + 1] - bounds_[c], options_.shape.dim});
    };
    for (int slice = 0; slice < schedule_.num_slices; ++slice) {
      const at::Tensor input = number == 0 ? at::Tensor() : activation(slice);
      timed(costs[static_cast<std::size_t>(slice)].f,
            [&] { stage.forward(m, slice, data_, input); });
    }
    for (int slice = schedule_.num_slices; slice-- > 0;) {
      const at::Tensor gradient = last ? at::Tensor() : activation(slice);
      OpCosts& own = costs[static_cast<std::size_t>(slice)];
      timed(own.i, [&] { stage.input_grad(m, slice, gradient); });
      timed(own.w, [&] { stage.weight_grad(m, slice); });
    }
    if (samples)
      for (int slice = 0; slice < schedule_.num_slices; ++slice)
        (*samples)[{number, slice}].push_back(costs[static_cast<std::size_t>(slice)]);
  }

  const Options& options_;
  const Schedule& schedule_;
  Communicator& world_;
  SliceBounds bounds_;
  std::map<int, std::unique_ptr<Stage>> stages_;
  Microbatch data_;
  std::unique_ptr<Executor> executor_;
};

struct Measured {
  double bound = 1e30, time = 1e30;
  std::map<std::pair<int, int>, OpCosts> costs;
};

Measured measure(const Options& options, const Schedule& schedule) {
  Measured all;
  std::mutex mutex;
  run_threads(options.ranks, {}, [&](Communicator& world) {
    at::set_num_threads(1);
    Rank rank(options, schedule, world);
    rank.step();
    rank.own_share();
    double bound = 1e30, time = 1e30;
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      bound = std::min(bound, rank.own_share());
      time = std::min(time, rank.step());
    }
    const auto costs = rank.profile(4 * options.repeats);
    const std::lock_guard lock(mutex);
    all.costs.insert(costs.begin(), costs.end());
    if (world.rank() == 0) {
      all.bound = bound;
      all.time = time;
    }
  });
  return all;
}

void report(const Options& options, const std::string& name) {
  const Schedule schedule = lowered_schedule(options, name);
  const Measured measured = measure(options, schedule);
  std::vector<OpCosts> table;
  std::vector<double> busy(static_cast<std::size_t>(options.ranks));
  for (const auto& [key, costs] : measured.costs) {
    table.push_back(costs);
    busy[static_cast<std::size_t>(schedule.placement.device_of(0, key.first))] +=
        options.microbatches * (costs.f + costs.b);
  }
  const Simulation simulation =
      simulate(schedule, Costs(schedule.num_stages(), schedule.num_slices, table));
  const double bound = *std::max_element(busy.begin(), busy.end());
  const double limit = bound / simulation.makespan;
  const double reached = measured.bound / measured.time;
  fmt::print(
      "sluice {:22s} s={:.4f} bound/time={:.3f} bound_s={:.4f} limit={:.3f} "
      "reached/limit={:.3f} simulated_s={:.4f} time/simulated={:.3f}\n",
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
  try {
    for (const std::string& schedule : options.schedules)
      sluice::report(options, schedule);
  } catch (const std::exception& error) {
    fmt::print(stderr, "pipeline_benchmark: {}\n", error.what());
    return 1;
  }
  return 0;
}
