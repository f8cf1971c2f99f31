// sluice train CONFIG: real training through any schedule, ranks as threads of this process.
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/price.h"
#include "comm/threads/threads.h"
#include "cost/stash.h"
#include "runtime/training_run.h"
#include "schedule/transforms/split_backward.h"
#include "trace/render.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string file;
  bool print_config = false;
  bool dry_run = false;
  std::string trace;
  CLI::App* command = nullptr;
};

std::atomic<bool> stop_requested = false;  // a signal handler can reach nothing else

void request_stop(int) {
  if (stop_requested.exchange(true)) _exit(static_cast<int>(ExitCode::terminated));
}

Schedule make_schedule(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  Schedule schedule;
  if (!parallelism.pipeline_parallel_schedule_csv.empty()) {
    schedule = read_named_schedule(parallelism.pipeline_parallel_schedule_csv);
  } else {
    GeneratorOptions options;
    options.devices = parallelism.pipeline_parallel_degree;
    options.microbatches = parallelism.num_microbatches;
    options.stages_per_device = parallelism.stages_per_device;
    options.slices = parallelism.slices;
    if (parallelism.memory_cap > 0) options.memory_cap = parallelism.memory_cap;
    schedule = generate_schedule(parallelism.pipeline_parallel_schedule, options);
    if (schedule.num_slices > 1)
      schedule.slice_sizes.assign(parallelism.slice_sizes.begin(), parallelism.slice_sizes.end());
  }
  if (parallelism.fuse_backward) schedule = fuse_backward(schedule);
  Validation validation = validate(schedule);
  if (!validation.valid())
    throw UserError(fmt::format("{} is not a valid schedule: {}", schedule.name,
                                validation.problems.front().line()),
                    ExitCode::invalid_schedule);
  if (validation.lowered.num_microbatches != parallelism.num_microbatches)
    throw user_error("the schedule has {} microbatches and parallelism.num_microbatches is {}",
                     validation.lowered.num_microbatches, parallelism.num_microbatches);
  if (validation.lowered.num_devices() != parallelism.pipeline_parallel_degree)
    throw user_error("the schedule has {} devices and parallelism.pipeline_parallel_degree is {}",
                     validation.lowered.num_devices(), parallelism.pipeline_parallel_degree);
  return std::move(validation.lowered);
}

// Bytes each op keeps; all ops take as long, since only the order matters for memory.
Costs stash_costs(const Config& config, const Schedule& schedule, const TrainerOptions& options) {
  std::vector<OpCosts> table;
  const std::int64_t sequences = config.training.global_batch_size / schedule.num_microbatches;
  for (int stage = 0; stage < schedule.num_stages(); ++stage)
    for (int slice = 0; slice < schedule.num_slices; ++slice) {
      const std::int64_t length = schedule.slice_sizes.empty()
                                      ? config.training.sequence_length
                                      : schedule.slice_sizes[static_cast<std::size_t>(slice)];
      const StashQuery query{.shape = options.shape,
                             .level = options.level,
                             .tokens = sequences * length,
                             .element_bytes = options.dtype == at::kFloat ? 4 : 2,
                             .sliced = schedule.num_slices > 1};
      const auto blocks =
          static_cast<double>(options.layers_per_stage[static_cast<std::size_t>(stage)]);
      const StashBytes block = block_stash(query);
      OpCosts costs;
      costs.f = costs.i = costs.w = 1;
      costs.b = 2;
      costs.after_f = blocks * static_cast<double>(block.after_f);
      costs.after_i = blocks * static_cast<double>(block.after_i);
      costs.kv_gradient =
          blocks * static_cast<double>(key_value_gradient_bytes(options.shape, query.tokens));
      for (const auto& [has, end] :
           {std::pair{stage == 0, embedding_stash(query)},
            std::pair{stage == schedule.num_stages() - 1, head_stash(query)}})
        if (has) {
          costs.after_f += static_cast<double>(end.after_f);
          costs.after_i += static_cast<double>(end.after_i);
        }
      table.push_back(costs);
    }
  Costs costs(schedule.num_stages(), schedule.num_slices, std::move(table));
  costs.measured = true;
  return costs;
}

// Those this process may run on, which a launcher or a container may have limited.
int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

double process_gibibytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word)
    if (word == "VmHWM:") {
      double kibibytes = 0;
      status >> kibibytes;
      return kibibytes / (1 << 20);
    }
  return 0;
}

double machine_gibibytes() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)) /
         (1 << 30);
}

// Multiplications and additions of a training step per token: 6 per weight outside the embedding,
// and attention over the whole sequence.
double flops_per_token(const ModelShape& s, std::int64_t length) {
  const double block = static_cast<double>(s.dim * s.qkv_dim() + s.dim * s.dim +
                                           s.dim * s.up_dim() + s.ffn_dim * s.dim);
  const double weights =
      static_cast<double>(s.layers) * block + static_cast<double>(s.vocab_size * s.dim);
  return 6 * weights + 12 * static_cast<double>(s.layers * s.dim * length);
}

void dry_run(const Config& config, const Schedule& schedule, const TrainerOptions& options,
             const Simulation& predicted) {
  TextTable table({"rank", "stages", "layers", "weights", "gradients", "optimizer", "stash"});
  table.left_align(1);
  const double mib = 1 << 20;
  for (int rank = 0; rank < schedule.num_devices(); ++rank) {
    double weights = 0;
    std::int64_t layers = 0;
    const ModelShape& s = options.shape;
    for (const int stage : schedule.placement.stages_of(rank)) {
      const std::int64_t blocks = options.layers_per_stage[static_cast<std::size_t>(stage)];
      layers += blocks;
      const bool biases = s.family == ModelFamily::gpt2;
      std::int64_t block =
          s.dim * s.qkv_dim() + s.dim * s.dim + s.dim * s.up_dim() + s.ffn_dim * s.dim + 2 * s.dim;
      if (biases) block += s.qkv_dim() + s.dim + s.up_dim() + s.dim + 2 * s.dim;
      std::int64_t count = blocks * block;
      if (stage == 0) count += (s.vocab_size + s.positions) * s.dim;
      if (stage == schedule.num_stages() - 1)
        count += s.vocab_size * s.dim + (biases ? 2 : 1) * s.dim;
      weights += static_cast<double>(count);
    }
    const double element = options.dtype == at::kFloat ? 4 : 2;
    double states = options.optimizer.kind == OptimizerKind::adamw ? 8 : 0;
    if (element == 2) states += 4;
    const auto mebibytes = [&](double bytes) { return fmt::format("{:.2f}", bytes / mib); };
    table.add({fmt::format("{}", rank),
               fmt::format("{}", fmt::join(schedule.placement.stages_of(rank), ",")),
               fmt::format("{}", layers), mebibytes(weights * element), mebibytes(weights * 4),
               mebibytes(weights * states),
               mebibytes(predicted.devices[static_cast<std::size_t>(rank)].peak_bytes)});
  }
  fmt::print("{} on {} ranks, {} microbatches of {} sequences; MiB per rank:\n{}", schedule.name,
             schedule.num_devices(), schedule.num_microbatches,
             config.training.global_batch_size / schedule.num_microbatches, table.text());
}

void write_trace(const std::string& path, const Schedule& schedule,
                 std::vector<DeviceTimeline> devices) {
  Timeline timeline;
  timeline.name = schedule.name + " (measured)";
  timeline.seconds = timeline.bytes = true;
  timeline.num_stages = schedule.num_stages();
  timeline.num_stages_per_device = schedule.placement.stages_per_device();
  timeline.num_slices = schedule.num_slices;
  timeline.num_pipes = schedule.num_pipes();
  for (const DeviceTimeline& device : devices)
    if (!device.spans.empty())
      timeline.makespan = std::max(timeline.makespan, device.spans.back().end);
  timeline.devices = std::move(devices);
  OutputFlags output;
  output.out = path;
  output.write(path.ends_with(".svg")    ? render_svg(timeline)
               : path.ends_with(".html") ? render_html(timeline)
                                         : render_chrome(timeline));
}

ExitCode run(const Flags& flags) {
  const LoadedConfig loaded = load_config(flags.file, flags.command->remaining());
  if (flags.print_config) {
    OutputFlags().write(print_config(loaded));
    return ExitCode::ok;
  }
  if (const auto problems = validate_config(loaded.values); !problems.empty())
    throw UserError(join(problems, "; "));
  const Config config = resolve_config(loaded.values);
  if (config.comm.backend != "threads")
    throw user_error("comm.backend is '{}': train runs on threads so far", config.comm.backend);
  const Schedule schedule = make_schedule(config);
  const TrainerOptions options = trainer_options(config, schedule);
  const Simulation predicted = simulate(schedule, stash_costs(config, schedule, options));
  if (flags.dry_run) {
    dry_run(config, schedule, options, predicted);
    return ExitCode::ok;
  }
  if (config.data.path.empty())
    throw user_error("data.path is missing: name a text file, --data.path=FILE");
  const std::shared_ptr<const TokenSource> source =
      open_token_source(config.data.path, parse_data_format(config.data.format));
  DatasetOptions data{.sequence_length = config.training.sequence_length,
                      .validation_fraction = config.data.validation_fraction,
                      .vocab_size = config.model.vocab_size,
                      .seed = static_cast<std::uint64_t>(config.debug.seed)};
  const Dataset training(source, data);
  std::optional<Dataset> held_out;
  if (config.data.validation_fraction > 0 && config.validation.interval > 0) {
    data.split = Split::validation;
    data.shuffle = false;
    held_out.emplace(source, data);
  }

  std::signal(SIGTERM, request_stop);
  std::signal(SIGINT, request_stop);
  const int ranks = schedule.num_devices();
  TrainingRun training_run{.config = config,
                           .lowered = schedule,
                           .training = training,
                           .held_out = held_out ? &*held_out : nullptr,
                           .predicted_peak_bytes = {},
                           .on_step = {},
                           .on_note = {}};
  for (const DeviceResult& device : predicted.devices)
    training_run.predicted_peak_bytes.push_back(static_cast<std::int64_t>(device.peak_bytes));
  training_run.threads_per_rank = std::max(1, available_cores() / ranks);
  training_run.stop = &stop_requested;
  const double flops = flops_per_token(options.shape, config.training.sequence_length);
  training_run.on_step = [&](const StepMetrics& metrics) {
    StepLine line;
    line.step = metrics.step;
    line.loss = metrics.loss;
    line.grad_norm = metrics.grad_norm;
    line.memory_gib = process_gibibytes();
    line.memory_percent = 100 * line.memory_gib / machine_gibibytes();
    line.tps = metrics.tps;
    line.tflops = metrics.tps * flops / 1e12;
    line.bubble_percent = 100 * metrics.bubble;
    std::string text = step_line(line);
    if (metrics.validation_loss)
      text += fmt::format("  validation: {:8.5f}", *metrics.validation_loss);
    fmt::print("{}\n", text);
    std::fflush(stdout);
  };
  training_run.on_note = [](const std::string& note) { fmt::print(stderr, "sluice: {}\n", note); };

  fmt::print(stderr, "sluice: {} on {} ranks of {} threads each, {} training samples\n",
             schedule.name, ranks, training_run.threads_per_rank, training.num_samples());
  std::vector<DeviceTimeline> devices(static_cast<std::size_t>(ranks));
  bool stopped = false;
  const auto deadline = std::chrono::milliseconds(
      static_cast<std::int64_t>(1000 * config.comm.train_timeout_seconds));
  run_threads(ranks, {.comm = {.deadline = deadline}}, [&](Communicator& world) {
    RunEnd end = run_training(training_run, world);
    if (!end.devices.empty())
      devices[static_cast<std::size_t>(world.rank())] = std::move(end.devices.front());
    if (world.rank() == 0) stopped = end.stopped;
  });
  if (!flags.trace.empty()) write_trace(flags.trace, schedule, std::move(devices));
  return stopped ? ExitCode::terminated : ExitCode::ok;
}

}  // namespace

void add_train(CLI::App& app, ExitCode& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("train", "train a model through a schedule");
  flags->command = command;
  command->add_option("config", flags->file, "configuration in TOML (docs/configuration.md)")
      ->required();
  command->add_flag("--print-config", flags->print_config,
                    "every value and where it comes from; trains nothing");
  command->add_flag("--dry-run", flags->dry_run, "check everything, print memory; train nothing");
  command
      ->add_option("--trace", flags->trace,
                   "the last step as measured: .json for Perfetto, .svg or .html")
      ->type_name("FILE");
  command->allow_extras();
  command->footer("Any key can be set: --section.key=value");
  command->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace sluice::cli
