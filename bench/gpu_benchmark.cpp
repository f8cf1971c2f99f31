// Training steps on one GPU: whole ones, or a pipeline of SM partitions. One JSON object per line.
// A step is all that training does: data, forwards, backwards, norm, update. Several seconds of
// steps come before the measured ones, because a GPU slows down once it is warm. bench/gpu runs the
// cases of docs/benchmarks.md with it.
#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/comm/threads/threads.h"
#include "sluice/cost/flops.h"
#include "sluice/cuda/device.h"
#include "sluice/plan/plan_run.h"
#include "sluice/runtime/profiling.h"
#include "sluice/runtime/rank_device.h"
#include "sluice/runtime/trainer.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
const double kPeakFlops = known_peak_tflops("H200", NumberType::bfloat16) * 1e12;

struct Options {
  std::string length_by_batch = "4096x8";
  std::string precision = "bf16";  // bf16: all of it; master: fp32 gradients, masters and moments
  std::string recompute = "none";
  int slices = 1;
  std::string slice_sizes;  // balanced, or a list; "": even
  double warmup = 5, seconds = 10;
  int steps = 0;  // measured; 0: by time
  std::string schedule;
  int partitions = 0, sms = 0, microbatches = 1;
  int profile_microbatches = 0;  // of the profile that predicts; 0: those of the step
  bool packed = false;           // documents of random lengths, kept apart
  std::int64_t long_document = kLongDocument;
  ModelConfig model = {.shape = ModelFamily::llama,
                       .layers = 24,
                       .dim = 2048,
                       .heads = 16,
                       .ffn_dim = 5504,
                       .vocab_size = 32000};

  int length() const { return std::stoi(length_by_batch); }
  int batch() const { return std::stoi(length_by_batch.substr(length_by_batch.find('x') + 1)); }
};

// Mean clock and power of the GPU while it lives.
class Watch {
 public:
  Watch() : thread_([this] { poll(); }) {}
  ~Watch() { stop(); }

  std::array<double, 2> stop() {
    on_ = false;
    if (thread_.joinable()) thread_.join();
    if (count_ == 0) return {0, 0};
    return {megahertz_ / count_, watts_ / count_};
  }

 private:
  void poll() {
    while (on_) {
      FILE* pipe = popen(
          "nvidia-smi --query-gpu=clocks.sm,power.draw --format=csv,noheader,nounits 2>/dev/null",
          "r");
      double megahertz = 0, watts = 0;
      if (pipe && std::fscanf(pipe, "%lf, %lf", &megahertz, &watts) == 2) {
        megahertz_ += megahertz;
        watts_ += watts;
        ++count_;
      }
      if (pipe) pclose(pipe);
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  }

  std::atomic<bool> on_ = true;
  double megahertz_ = 0, watts_ = 0;
  int count_ = 0;
  std::thread thread_;
};

std::vector<int> list_of(const std::string& text) {
  std::vector<int> list;
  for (const std::string_view part : split(text, ','))
    list.push_back(std::stoi(std::string(part)));
  return list;
}

RunPlan plan_of(const Options& options) {
  const auto level = named<RecomputeLevel>(options.recompute);
  if (!level) throw user_error("--recompute is '{}': no such level", options.recompute);
  Config config;
  config.model = options.model;
  config.recompute.level = *level;
  config.training.sequence_length = options.length();
  config.training.global_batch_size = options.batch() * options.microbatches;
  config.training.steps = 1'000'000;
  config.training.dtype = NumberType::bfloat16;
  config.optimizer.lr = 1e-4;
  if (options.precision == "bf16") {
    config.training.gradient_dtype = config.optimizer.state_dtype = NumberType::bfloat16;
    config.optimizer.master_weights = false;
  }
  ParallelismConfig& parallelism = config.parallelism;
  parallelism.pipeline_parallel_degree = std::max(options.partitions, 1);
  parallelism.pipeline_parallel_schedule = !options.schedule.empty() ? options.schedule
                                           : options.slices > 1      ? "seq1f1b"
                                                                     : "1f1b";
  parallelism.num_microbatches = options.microbatches;
  parallelism.slices = options.slices;
  if (options.slice_sizes == "balanced")
    parallelism.slice_sizes.rule = SliceRule::balanced;
  else if (!options.slice_sizes.empty())
    parallelism.slice_sizes = {SliceRule::list, list_of(options.slice_sizes)};
  config.cluster = {.device = DeviceKind::cuda,
                    .partitions = options.partitions,
                    .sms_per_partition = options.sms};
  config.comm.backend = Backend::threads;
  return plan_run(config).plan;
}

Dataset random_data(const Options& options) {
  std::mt19937 random(1);
  const std::int64_t batch = std::int64_t{options.batch()} * options.microbatches;
  // Packed: enough for a hundred batches, so that no lengths come again.
  const std::int64_t batches = options.packed ? 110 : 4;
  std::vector<std::int32_t> tokens(
      static_cast<std::size_t>(batches * batch * options.length() + 1));
  for (std::int32_t& token : tokens)
    token =
        static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(options.model.vocab_size));
  const auto count = static_cast<std::int64_t>(tokens.size());
  std::vector<std::int64_t> starts = {0};
  std::uniform_real_distribution<double> exponent(6, 15);  // 64 to 32768 tokens
  while (options.packed && starts.back() < count)
    starts.push_back(
        std::min(count, starts.back() + static_cast<std::int64_t>(std::exp2(exponent(random)))));
  if (starts.back() < count) starts.push_back(count);
  return Dataset(memory_source(std::move(tokens), std::move(starts)),
                 {.sequence_length = options.length(),
                  .packing = options.packed ? Packing::documents : Packing::stream,
                  .vocab_size = options.model.vocab_size});
}

// Attention of packed documents counts as if each sequence were one document: published figures do
// so (docs/benchmarks/h200.md).
double model_flops(const RunPlan& plan) {
  const double length = plan.config.training.sequence_length;
  const double tokens = length * plan.config.training.global_batch_size;
  return step_flops(plan.shape, tokens, tokens * length);
}

struct Result {
  int steps = 0;
  double seconds = 0;   // of one step
  double makespan = 0;  // of one step's ops: from the first to the last, over all ranks
  double issue = 0;     // until this rank's thread had given the last op to the GPU
  double loss = 0;
  std::vector<std::int64_t> peaks;  // stash of each rank
  std::array<double, 2> clock_and_power{};
  std::int64_t memory_peak = 0;
  std::optional<Costs> costs;
};

struct Window {
  double start = 0, end = 0;
};

void run_rank(const Options& options, const RunPlan& plan, const Dataset& data,
              const RankDevices& devices, Communicator& world, Result& result) {
  at::set_num_threads(std::max(1, 16 / world.size()));
  const auto stream = devices.take(world.rank());
  const Machine machine{.device = devices.device(), .long_document = options.long_document};
  const bool leads = world.rank() == 0;
  if (options.partitions > 0) {
    Options profiled = options;
    if (options.profile_microbatches > 0) profiled.microbatches = options.profile_microbatches;
    Costs costs = profile_ops(plan_of(profiled), machine, world,
                              {.rounds = 2, .seconds = 1.5, .on_progress = {}});
    if (leads) {
      fmt::print(stderr, "contention {:.3f}; ms of F, I, W, B:", fmt::join(costs.contention, " "));
      for (int slice = 0; slice < costs.num_slices(); ++slice) {
        const OpCosts& op = costs.at(1, slice);
        fmt::print(stderr, " {:.2f} {:.2f} {:.2f} {:.2f}{}", op.f * 1e3, op.i * 1e3, op.w * 1e3,
                   op.b * 1e3, slice + 1 < costs.num_slices() ? "," : "\n");
      }
    }
    if (leads) result.costs = std::move(costs);
  }
  const auto begun = Clock::now();
  const auto progress = [&](const char* what) {
    if (leads)
      fmt::print(stderr, "{}: {} ({:.1f} s)\n", options.length_by_batch, what,
                 std::chrono::duration<double>(Clock::now() - begun).count());
  };
  Trainer trainer(plan, data, world, machine);
  progress("weights are drawn");
  if (trainer.plans().count > 0) progress(trainer.plans().line().c_str());
  std::int64_t number = 0;
  double makespan = 0, issue = 0;
  const auto steps_for = [&](double seconds, int least) {
    int count = 0;
    const auto start = Clock::now();
    bool more = true;
    while (more) {
      const StepResult step = trainer.step(++number);
      result.loss = step.loss;
      const auto& spans = step.executed.timeline.spans;
      const Window mine{spans.front().start, spans.back().end};
      std::vector<Window> all(static_cast<std::size_t>(world.size()));
      world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
      Window window = all[0];
      for (const Window& one : all)
        window = {std::min(window.start, one.start), std::max(window.end, one.end)};
      makespan += window.end - window.start;
      issue += step.executed.issued;
      if (leads) result.peaks.assign(1, step.executed.peak_stash_bytes);
      std::vector<std::int64_t> peaks(static_cast<std::size_t>(world.size()));
      world.all_gather(std::as_bytes(std::span(&step.executed.peak_stash_bytes, 1)),
                       std::as_writable_bytes(std::span(peaks)));
      if (leads) result.peaks = peaks;
      ++count;
      more = count < least || std::chrono::duration<double>(Clock::now() - start).count() < seconds;
      world.broadcast(0, std::as_writable_bytes(std::span(&more, 1)));
    }
    cuda::synchronize();
    return std::pair(count, std::chrono::duration<double>(Clock::now() - start).count());
  };
  if (options.warmup > 0 || options.steps == 0) steps_for(options.warmup, 2);
  progress("warm");
  world.barrier();
  if (leads) cuda::reset_peak(0);
  world.barrier();
  makespan = issue = 0;
  std::optional<Watch> watch;
  if (leads) watch.emplace();
  const auto [count, seconds] =
      steps_for(options.steps > 0 ? 0 : options.seconds, std::max(options.steps, 1));
  if (leads) {
    result.clock_and_power = watch->stop();
    result.steps = count;
    result.seconds = seconds / count;
    result.makespan = makespan / count;
    result.issue = issue / count;
    result.memory_peak = cuda::memory_use(0).peak;
  }
}

void report(const Options& options) {
  const RunPlan plan = plan_of(options);
  const Dataset data = random_data(options);
  const RankDevices devices(plan.config.cluster);
  Result result;
  std::vector<Result> others(static_cast<std::size_t>(plan.mesh.size()));
  run_threads(plan.mesh.size(), {}, [&](Communicator& world) {
    run_rank(options, plan, data, devices, world,
             world.rank() == 0 ? result : others[static_cast<std::size_t>(world.rank())]);
  });
  const double tokens =
      static_cast<double>(options.length()) * plan.config.training.global_batch_size;
  std::string line = fmt::format(
      R"({{"case": "{}", "engine": "sluice", "precision": "{}", "recompute": "{}", "slices": {}, "packed": {}, )"
      R"("steps": {}, "ms": {:.1f}, "tokens_per_s": {:.0f}, "mfu": {:.4f}, "peak_gib": {:.1f}, )"
      R"("sm_mhz": {:.0f}, "watts": {:.0f}, "issue_ms": {:.1f})",
      options.length_by_batch, options.precision, options.recompute, options.slices, options.packed,
      result.steps, result.seconds * 1e3, tokens / result.seconds,
      model_flops(plan) / result.seconds / kPeakFlops,
      static_cast<double>(result.memory_peak) / (1 << 30), result.clock_and_power[0],
      result.clock_and_power[1], result.issue * 1e3);
  if (options.packed) line += fmt::format(R"(, "long_document": {})", options.long_document);
  if (plan.sliced())
    line += fmt::format(R"(, "slice_sizes": [{}])", fmt::join(plan.schedule.slice_sizes, ", "));
  if (options.partitions > 0) {
    const Simulation predicted = simulate(plan.schedule, *result.costs);
    line += fmt::format(
        R"(, "schedule": "{}", "partitions": {}, "sms": {}, "microbatches": {}, )"
        R"("makespan_ms": {:.1f}, "predicted_ms": {:.1f}, "peak_stash_bytes": {}, "stash_of_ranks": [{}])",
        plan.schedule.name, options.partitions, options.sms, options.microbatches,
        result.makespan * 1e3, predicted.makespan * 1e3,
        *std::max_element(result.peaks.begin(), result.peaks.end()), fmt::join(result.peaks, ", "));
  }
  fmt::print("{}, \"loss\": {:.4f}}}\n", line, result.loss);
  std::fflush(stdout);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Options options;
  CLI::App app("training steps on one GPU; one JSON object");
  app.add_option("--case", options.length_by_batch, "LENGTHxSEQUENCES of a microbatch");
  app.add_option("--precision", options.precision,
                 "bf16: all of it; master: fp32 masters, gradients and moments")
      ->check(CLI::IsMember({"bf16", "master"}));
  app.add_option("--recompute", options.recompute);
  app.add_option("--slices", options.slices);
  app.add_option("--slice-sizes", options.slice_sizes, "tokens of each, or balanced");
  app.add_option("--warmup", options.warmup, "seconds of steps before");
  app.add_option("--seconds", options.seconds, "seconds of measured steps");
  app.add_option("--steps", options.steps, "so many measured steps instead");
  app.add_flag("--packed", options.packed, "documents of 64 to 32768 tokens, kept apart");
  app.add_option("--long-document", options.long_document,
                 "packed documents of so many tokens go to cuDNN one by one; 0: none");
  app.add_option("--schedule", options.schedule);
  app.add_option("--partitions", options.partitions);
  app.add_option("--sms", options.sms, "multiprocessors of each partition");
  app.add_option("--microbatches", options.microbatches);
  app.add_option("--profile-microbatches", options.profile_microbatches,
                 "fewer for the profile, where a step takes long");
  app.add_option("--layers", options.model.layers);
  app.add_option("--vocab", options.model.vocab_size);
  CLI11_PARSE(app, argc, argv);
  try {
    sluice::report(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_benchmark: {}\n", error.what());
    return 1;
  }
  return 0;
}
