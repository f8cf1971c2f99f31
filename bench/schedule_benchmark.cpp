// Speed of the pure side: generate, prove, simulate. Figures are in docs/benchmarks.md.
#include <benchmark/benchmark.h>

#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

GeneratorOptions sizes(std::int64_t devices, std::int64_t microbatches) {
  GeneratorOptions options;
  options.devices = static_cast<int>(devices);
  options.microbatches = static_cast<int>(microbatches);
  return options;
}

void count_ops(benchmark::State& state, std::size_t ops) {
  state.counters["ops"] = static_cast<double>(ops);
  state.counters["ops/s"] =
      benchmark::Counter(static_cast<double>(ops) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}

// The simulator alone, from a thousand to ten million compute ops: must be linear.
void simulate_1f1b(benchmark::State& state) {
  const Schedule schedule = generate_schedule("1f1b", sizes(state.range(0), state.range(1)));
  const Costs costs = unit_costs(schedule, {1, 1, 1}, 0.1, 1);
  for (auto _ : state)
    benchmark::DoNotOptimize(simulate(schedule, costs).makespan);
  count_ops(state, schedule.num_compute_ops());
}
BENCHMARK(simulate_1f1b)
    ->Args({8, 64})
    ->Args({64, 512})
    ->Args({256, 2048})
    ->Args({512, 4096})
    ->Args({1024, 4882})
    ->Unit(benchmark::kMillisecond);

void simulate_zb_v(benchmark::State& state) {
  const Schedule schedule = generate_schedule("zb-v", sizes(state.range(0), state.range(1)));
  const Costs costs = unit_costs(schedule, {3, 4, 2}, 0.1, 1);
  for (auto _ : state)
    benchmark::DoNotOptimize(simulate(schedule, costs).makespan);
  count_ops(state, schedule.num_compute_ops());
}
BENCHMARK(simulate_zb_v)
    ->Args({8, 64})
    ->Args({64, 1024})
    ->Args({128, 8192})
    ->Unit(benchmark::kMillisecond);

// With contention, in order of time: n log p.
void simulate_contended(benchmark::State& state) {
  const Schedule schedule = generate_schedule("1f1b", sizes(state.range(0), state.range(1)));
  Costs costs = unit_costs(schedule, {1, 1, 1}, 0.1, 1);
  const auto devices = static_cast<double>(state.range(0));
  for (double busy = 1; busy <= devices; ++busy)
    costs.contention.push_back(1.5 - 0.5 * busy / devices);
  for (auto _ : state)
    benchmark::DoNotOptimize(simulate(schedule, costs).makespan);
  count_ops(state, schedule.num_compute_ops());
}
BENCHMARK(simulate_contended)
    ->Args({8, 64})
    ->Args({64, 512})
    ->Args({1024, 4882})
    ->Unit(benchmark::kMillisecond);

// What `sluice schedule NAME` does before it draws.
void generate_prove_simulate(benchmark::State& state, const char* name) {
  std::size_t ops = 0;
  for (auto _ : state) {
    const Schedule schedule = generate_schedule(name, sizes(state.range(0), state.range(1)));
    const Validation validation = validate(schedule);
    if (!validation.valid()) state.SkipWithError("invalid schedule");
    benchmark::DoNotOptimize(simulate(schedule, unit_costs(schedule, {1, 1, 1}, 0, 1)).makespan);
    ops = schedule.num_compute_ops();
  }
  count_ops(state, ops);
}
BENCHMARK_CAPTURE(generate_prove_simulate, interleaved, "interleaved-1f1b")
    ->Args({64, 512})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(generate_prove_simulate, 1f1b, "1f1b")
    ->Args({1024, 4096})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(generate_prove_simulate, v_half, "v-half")
    ->Args({8, 24})
    ->Args({64, 512})
    ->Unit(benchmark::kMillisecond);

// The search over building blocks; p+2 is a little over half of 1F1B's memory, 2p all of it.
void adaptive_v(benchmark::State& state) {
  GeneratorOptions options = sizes(state.range(0), state.range(1));
  options.memory_cap = static_cast<double>(state.range(2));
  options.times = state.range(3) ? OpTimes{3, 4, 2} : OpTimes{1, 1, 1};
  for (auto _ : state)
    benchmark::DoNotOptimize(generate_schedule("adaptive-v", options));
}
BENCHMARK(adaptive_v)
    ->ArgNames({"p", "m", "cap", "unequal"})
    ->Args({8, 24, 10, 0})
    ->Args({8, 24, 10, 1})
    ->Args({8, 24, 16, 1})
    ->Args({32, 128, 34, 0})
    ->Args({32, 128, 34, 1})
    ->Args({32, 128, 64, 1})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice

BENCHMARK_MAIN();
