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

#include "base/error.h"
#include "comm/threads/threads.h"
#include "cost/flops.h"
#include "cuda/device.h"
#include "runtime/options.h"
#include "runtime/profiling.h"
#include "runtime/rank_device.h"
#include "runtime/trainer.h"
#include "schedule/generators/generator.h"
#include "schedule/validate.h"
#include "sim/simulate.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
const double kPeakFlops = known_peak_tflops("H200", true) * 1e12;

struct Options {
  std::string length_by_batch = "4096x8";
  std::string precision = "bf16";  // bf16: all of it; master: fp32 gradients, masters and moments
  std::string recompute = "none";
  int slices = 1;
  std::vector<std::int64_t> slice_sizes;  // empty: equal
  double warmup = 5, seconds = 10;
  int steps = 0;  // measured; 0: by time
  std::string schedule;
  int partitions = 0, sms = 0, microbatches = 1;
  bool packed = false;  // documents of random lengths, kept apart
  std::int64_t long_document = kLongDocument;
  ModelShape shape;

  std::int64_t length() const { return std::stoll(length_by_batch); }
  std::int64_t batch() const {
    return std::stoll(length_by_batch.substr(length_by_batch.find('x') + 1));
  }
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

RecomputeLevel level_of(const std::string& name) {
  Config config;
  config.recompute.level = name;
  return recompute_level(config);
}

TrainerOptions trainer_options(const Options& options, const Schedule& schedule) {
  TrainerOptions out;
  out.shape = options.shape;
  out.layers_per_stage = even_layers(options.shape.layers, schedule.num_stages());
  out.level = level_of(options.recompute);
  out.kind = at::kBFloat16;
  out.kind.device = at::Device(at::kCUDA, 0);
  const bool narrow = options.precision == "bf16";
  out.kind.gradient_dtype = narrow ? at::kBFloat16 : at::kFloat;
  out.optimizer.master_weights = !narrow;
  out.optimizer.state_dtype = narrow ? at::kBFloat16 : at::kFloat;
  out.global_batch_size = options.batch() * options.microbatches;
  out.sequence_length = options.length();
  out.learning_rate = 1e-4;
  out.num_steps = 1000000;
  out.max_norm = 1;
  out.long_document = options.long_document;
  return out;
}

Dataset random_data(const Options& options) {
  std::mt19937 random(1);
  const std::int64_t batch = options.batch() * options.microbatches;
  // Packed: enough for a hundred batches, so that no lengths come again.
  const std::int64_t batches = options.packed ? 110 : 4;
  std::vector<std::int32_t> tokens(
      static_cast<std::size_t>(batches * batch * options.length() + 1));
  for (std::int32_t& token : tokens)
    token =
        static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(options.shape.vocab_size));
  const auto count = static_cast<std::int64_t>(tokens.size());
  std::vector<std::int64_t> starts = {0};
  std::uniform_real_distribution<double> exponent(6, 15);  // 64 to 32768 tokens
  while (options.packed && starts.back() < count)
    starts.push_back(
        std::min(count, starts.back() + static_cast<std::int64_t>(std::exp2(exponent(random)))));
  if (starts.back() < count) starts.push_back(count);
  return Dataset(memory_source(std::move(tokens), std::move(starts)),
                 {.sequence_length = options.length(),
                  .packed = options.packed,
                  .vocab_size = options.shape.vocab_size});
}

Schedule make_schedule(const Options& options) {
  GeneratorOptions request;
  request.devices = std::max(options.partitions, 1);
  request.microbatches = options.microbatches;
  request.slices = options.slices;
  const bool sliced = options.slices > 1 && options.schedule.empty();
  Schedule schedule = generate_schedule(!options.schedule.empty() ? options.schedule
                                        : sliced                  ? "seq1f1b"
                                                                  : "1f1b",
                                        request);
  schedule.slice_sizes = options.slice_sizes;
  Validation validation = validate(schedule);
  if (!validation.valid())
    throw user_error("{}: {}", options.schedule, validation.problems.front().line());
  return std::move(validation.lowered);
}

// Attention of packed documents counts as if each sequence were one document: published figures do
// so (docs/benchmarks/h200.md).
double model_flops(const Options& options) {
  const auto length = static_cast<double>(options.length());
  const double tokens = length * static_cast<double>(options.batch() * options.microbatches);
  return step_flops(options.shape, tokens, tokens * length);
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

void run_rank(const Options& options, const Schedule& schedule, const Dataset& data,
              const RankDevices& devices, Communicator& world, Result& result) {
  at::set_num_threads(std::max(1, 16 / world.size()));
  const auto stream = devices.take(world.rank());
  const TrainerOptions trainer_of = trainer_options(options, schedule);
  const bool leads = world.rank() == 0;
  if (options.partitions > 0) {
    Costs costs =
        profile_ops(trainer_of, schedule, world, {.rounds = 2, .seconds = 1.5, .on_progress = {}});
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
  Trainer trainer(trainer_of, schedule, data, world);
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
  const Schedule schedule = make_schedule(options);
  const Dataset data = random_data(options);
  const RankDevices devices(
      {.device = "cuda", .partitions = options.partitions, .sms_per_partition = options.sms});
  Result result;
  std::vector<Result> others(static_cast<std::size_t>(schedule.num_devices()));
  run_threads(schedule.num_devices(), {}, [&](Communicator& world) {
    run_rank(options, schedule, data, devices, world,
             world.rank() == 0 ? result : others[static_cast<std::size_t>(world.rank())]);
  });
  const double tokens =
      static_cast<double>(options.length() * options.batch() * options.microbatches);
  std::string line = fmt::format(
      R"({{"case": "{}", "engine": "sluice", "precision": "{}", "recompute": "{}", "slices": {}, "packed": {}, )"
      R"("steps": {}, "ms": {:.1f}, "tokens_per_s": {:.0f}, "mfu": {:.4f}, "peak_gib": {:.1f}, )"
      R"("sm_mhz": {:.0f}, "watts": {:.0f}, "issue_ms": {:.1f})",
      options.length_by_batch, options.precision, options.recompute, options.slices, options.packed,
      result.steps, result.seconds * 1e3, tokens / result.seconds,
      model_flops(options) / result.seconds / kPeakFlops,
      static_cast<double>(result.memory_peak) / (1 << 30), result.clock_and_power[0],
      result.clock_and_power[1], result.issue * 1e3);
  if (options.packed) line += fmt::format(R"(, "long_document": {})", options.long_document);
  if (!options.slice_sizes.empty())
    line += fmt::format(R"(, "slice_sizes": [{}])", fmt::join(options.slice_sizes, ", "));
  if (options.partitions > 0) {
    const Simulation predicted = simulate(schedule, *result.costs);
    line += fmt::format(
        R"(, "schedule": "{}", "partitions": {}, "sms": {}, "microbatches": {}, )"
        R"("makespan_ms": {:.1f}, "predicted_ms": {:.1f}, "peak_stash_bytes": {}, "stash_of_ranks": [{}])",
        schedule.name, options.partitions, options.sms, options.microbatches, result.makespan * 1e3,
        predicted.makespan * 1e3, *std::max_element(result.peaks.begin(), result.peaks.end()),
        fmt::join(result.peaks, ", "));
  }
  fmt::print("{}, \"loss\": {:.4f}}}\n", line, result.loss);
  std::fflush(stdout);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Options options;
  options.shape.family = sluice::ModelFamily::llama;
  options.shape.layers = 24;
  options.shape.dim = 2048;
  options.shape.heads = options.shape.kv_heads = 16;
  options.shape.ffn_dim = 5504;
  options.shape.vocab_size = 32000;
  CLI::App app("training steps on one GPU; one JSON object");
  app.add_option("--case", options.length_by_batch, "LENGTHxSEQUENCES of a microbatch");
  app.add_option("--precision", options.precision,
                 "bf16: all of it; master: fp32 masters, gradients and moments")
      ->check(CLI::IsMember({"bf16", "master"}));
  app.add_option("--recompute", options.recompute);
  app.add_option("--slices", options.slices);
  app.add_option("--slice-sizes", options.slice_sizes, "tokens of each")->delimiter(',');
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
  app.add_option("--layers", options.shape.layers);
  app.add_option("--vocab", options.shape.vocab_size);
  CLI11_PARSE(app, argc, argv);
  try {
    sluice::report(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_benchmark: {}\n", error.what());
    return 1;
  }
  return 0;
}
