// Trains on sequences of unequal lengths over links that are slower between nodes, with batches
// planned in several ways: the same batches, by turns, in one run. Ranks are threads with a core
// each, and nodes are made up (comm/paced.h).
//
// What sequences cost is measured first, on the same ranks and links. Then:
//
//   tokens/s            of whole steps, from barrier to barrier
//   measured/predicted  of all microbatches, from the barrier until the last rank has computed its
//                       last op, against what the planner said; the exchange of gradients and the
//                       update are no part of either
//   all-to-all          the share of that time that ranks spend exchanging heads for tokens, the
//                       mean over them
#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/comm/paced.h"
#include "sluice/comm/threads/threads.h"
#include "sluice/cost/parameters.h"
#include "sluice/plan/flexsp/length_distributions.h"
#include "sluice/plan/flexsp/run_cluster.h"
#include "sluice/plan/flexsp/run_planner.h"
#include "sluice/plan/plan_run.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/profiling.h"
#include "sluice/runtime/sequence_profiling.h"
#include "sluice/runtime/trainer.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Options {
  int nodes = 2, ranks_per_node = 4;
  double within_mb_s = 400, between_mb_s = 0;             // 0: a ninth
  double within_latency_us = 20, between_latency_us = 0;  // 0: nine times as long
  int pipeline = 1;
  std::string schedule = "1f1b";
  std::vector<std::string> strategies;
  std::string lengths = "github-like";
  int max_length = 2048;
  int batch = 64;
  int steps = 10, warm_up = 2;
  int capacity_tokens = 0;
  double memory_cap_mib = 0;
  double profile_seconds = 0.3;
  std::uint64_t seed = 0;
  bool show_steps = false;
  ModelConfig model = {.shape = ModelFamily::llama,
                       .layers = 4,
                       .dim = 256,
                       .heads = 8,
                       .ffn_dim = 704,
                       .vocab_size = 1024};

  int ranks() const { return nodes * ranks_per_node; }
  int data_ranks() const { return ranks() / pipeline; }
  PacedLinks::SpeedOf links() const {
    constexpr double kSlower = 9;
    const double between = between_mb_s > 0 ? between_mb_s : within_mb_s / kSlower;
    const double latency =
        between_latency_us > 0 ? between_latency_us : within_latency_us * kSlower;
    return links_of_nodes(ranks_per_node, {1e-6 * within_latency_us, 1e6 * within_mb_s},
                          {1e-6 * latency, 1e6 * between});
  }
};

// Without costs, in so many full microbatches of one sequence for each rank.
Config config_of(const Options& options, int microbatches) {
  Config config;
  config.model = options.model;
  config.data.packing = Packing::sequences;
  config.training.steps = options.steps;
  config.training.sequence_length = options.max_length;
  config.training.global_batch_size = microbatches * options.data_ranks();
  config.parallelism.pipeline_parallel_degree = options.pipeline;
  config.parallelism.pipeline_parallel_schedule = options.schedule;
  config.parallelism.data_parallel_shard_degree = options.data_ranks();
  config.parallelism.num_microbatches = microbatches;
  config.debug.seed = static_cast<std::int64_t>(options.seed);
  config.comm.backend = Backend::threads;
  return config;
}

void run_paced(const Options& options, const std::function<void(Communicator&)>& body) {
  PacedLinks links(options.links());
  run_threads(options.ranks(), {}, [&](Communicator& threads) {
    at::set_num_threads(1);
    body(*with_pace(threads, links));
  });
}

// A folder that is gone afterwards.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / "sluice-flexsp-XXXXXX") {
    std::string name = path_.string();
    if (!mkdtemp(name.data())) throw user_error("{}: cannot be made", name);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = (path_ / name).string();
    std::ofstream(path) << text;
    return path;
  }

 private:
  std::filesystem::path path_;
};

// What ops and sequences cost on the ranks and links of the run.
Costs profile(const Options& options) {
  const auto start = Clock::now();
  const RunPlan plan = plan_run(config_of(options, options.pipeline)).plan;
  std::optional<Costs> costs;
  run_paced(options, [&](Communicator& world) {
    const ProfileOptions how{.rounds = 3, .seconds = options.profile_seconds, .on_progress = {}};
    Costs mine = profile_ops(plan, {}, world, how);
    const SequenceProfile sequences = profile_sequences(plan, {}, world, how);
    if (world.rank() != 0) return;
    mine.flexsp = sequences.costs;
    const flexsp::MemoryLine memory = flexsp::memory_line(plan);
    mine.flexsp->state_bytes = memory.state_bytes;
    mine.flexsp->stash_bytes_per_token = memory.stash_bytes_per_token;
    fmt::print(
        "profile: {:.3g} s^2 + {:.3g} s + {:.3g} seconds, fitted with a mean error of "
        "{:.1f}% (at most {:.1f}%)",
        sequences.costs.a1, sequences.costs.a2, sequences.costs.b1, 100 * sequences.fit.mean_error,
        100 * sequences.fit.largest_error);
    for (const auto& [degree, rate] : sequences.costs.bytes_per_s)
      fmt::print("; {} ranks {:.0f} MB/s", degree, 1e-6 * rate);
    costs = std::move(mine);
  });
  fmt::print("; took {:.0f} s\n", seconds_since(start));
  return std::move(*costs);
}

// The least memory, in MiB, with which a rank has room for so many tokens.
double cap_for(Config config, int tokens) {
  double least = 0, enough = 1 << 20;
  while (enough - least > 1e-3) {
    const double middle = (least + enough) / 2;
    config.parallelism.device_memory_mib = {middle};
    bool fits = false;
    try {
      fits = plan_run(config).plan.most_planned->tokens >= tokens;
    } catch (const UserError&) {  // there is no room for the states
    }
    (fits ? enough : least) = middle;
  }
  return enough;
}

Dataset sequences_of(const Options& options) {
  const auto distribution = named<flexsp::LengthDistribution>(options.lengths);
  if (!distribution)
    throw user_error("--lengths is {}: needs wikipedia, commoncrawl-like or github-like",
                     options.lengths);
  std::vector<std::int64_t> starts = {0};
  for (const std::int64_t length :
       flexsp::draw_lengths(*distribution, std::int64_t{options.steps} * options.batch,
                            options.seed, options.max_length)
           .lengths)
    starts.push_back(starts.back() + length);
  std::mt19937_64 random(options.seed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(starts.back()));
  for (std::int32_t& token : tokens)
    token = static_cast<std::int32_t>(random() % static_cast<unsigned>(options.model.vocab_size));
  return Dataset(memory_source(std::move(tokens), std::move(starts)),
                 {.sequence_length = options.max_length,
                  .packing = Packing::sequences,
                  .vocab_size = options.model.vocab_size,
                  .shuffle = false});
}

// A step as one rank saw it.
struct Step {
  double seconds = 0;    // from barrier to barrier
  double computed = 0;   // until its last op had ended
  double exchanged = 0;  // in all-to-alls
  double predicted = 0;  // on rank 0
  std::int64_t tokens = 0;
  int microbatches = 0;
  std::string groups;
};

// "4+2+1+1 8": the degrees of each microbatch.
std::string groups_text(const BatchPlan& plan) {
  std::vector<std::string> out;
  for (const auto& groups : plan.microbatches) {
    std::vector<int> degrees;
    for (const SequenceGroup& group : groups)
      if (!group.sequences.empty()) degrees.push_back(group.degree);
    out.push_back(fmt::format("{}", fmt::join(degrees, "+")));
  }
  return fmt::format("{}", fmt::join(out, " "));
}

Step take_step(Trainer& trainer, Communicator& world, int number) {
  Step step;
  world.barrier();
  const auto start = Clock::now();
  const StepResult result = trainer.step(number);
  world.barrier();
  step.seconds = seconds_since(start);
  for (const Span& span : result.executed.timeline.spans)
    if (span.op.kind <= OpKind::B) step.computed = std::max(step.computed, span.end);
  step.exchanged = result.executed.all_to_all_s;
  if (result.planning) step.predicted = result.planning->predicted_s;
  step.tokens = result.num_tokens;
  step.microbatches = trainer.batch_plan().num_microbatches();
  step.groups = groups_text(trainer.batch_plan());
  return step;
}

using Steps = std::vector<Step>;  // by rank

double computed(const Steps& step) {
  double last = 0;
  for (const Step& rank : step)
    last = std::max(last, rank.computed);
  return last;
}

double exchanged(const Steps& step) {
  double sum = 0;
  for (const Step& rank : step)
    sum += rank.exchanged;
  return sum / static_cast<double>(step.size());
}

void report(const Options& options, const std::string& strategy, const std::vector<Steps>& steps) {
  double seconds = 0, ratios = 0, error = 0, largest = 0, time = 0, all_to_all = 0, predicted = 0;
  double tokens = 0, microbatches = 0;
  int count = 0;
  for (std::size_t n = 0; n < steps.size(); ++n) {
    const Step& first = steps[n].front();
    const double ratio = computed(steps[n]) / first.predicted;
    if (options.show_steps)
      fmt::print(
          "  {} step {}: {} tokens, {:.3f} s, computed in {:.3f} s, predicted {:.3f} s "
          "({:.3f}); groups {}\n",
          strategy, n + 1, first.tokens, first.seconds, computed(steps[n]), first.predicted, ratio,
          first.groups);
    if (static_cast<int>(n) < options.warm_up) continue;
    ++count;
    seconds += first.seconds;
    tokens += static_cast<double>(first.tokens);
    microbatches += first.microbatches;
    time += computed(steps[n]);
    predicted += first.predicted;
    all_to_all += exchanged(steps[n]);
    ratios += ratio;
    error += std::abs(ratio - 1);
    largest = std::max(largest, std::abs(ratio - 1));
  }
  fmt::print(
      "{:10s} {:7.0f} tokens/s  {:.3f} s a step  measured/predicted {:.3f} (error: mean "
      "{:.1f}%, at most {:.1f}%)  all-to-all {:.1f}%  {:.1f} microbatches\n",
      strategy, tokens / seconds, seconds / count, ratios / count, 100 * error / count,
      100 * largest, 100 * all_to_all / time, microbatches / count);
  std::fflush(stdout);
}

void train(const Options& options) {
  const Dataset data = sequences_of(options);
  const Folder folder;
  Config config = config_of(options, options.pipeline);
  config.parallelism.costs = folder.write("costs.json", costs_to_json(profile(options)));
  config.training.global_batch_size = options.batch;
  config.parallelism.num_microbatches = options.pipeline;
  config.flexsp.enabled = true;
  double cap = options.memory_cap_mib;
  const int tokens =
      options.capacity_tokens > 0 ? options.capacity_tokens : options.max_length * 3 / 10;
  if (cap == 0) cap = cap_for(config, tokens);
  config.parallelism.device_memory_mib = {cap};

  std::vector<RunPlan> plans;
  for (const std::string& strategy : options.strategies) {
    config.flexsp.strategy = strategy;
    PlannedRun run = plan_run(config);
    run.plan.planner = flexsp::run_planner(run);
    plans.push_back(std::move(run.plan));
  }
  fmt::print(
      "{} nodes of {} ranks, {} stages; {} parameters; {} sequences a step, {:.0f} tokens; "
      "{:.1f} MiB, {} tokens of a microbatch on a rank\n",
      options.nodes, options.ranks_per_node, options.pipeline, num_parameters(plans.front().shape),
      options.batch, static_cast<double>(data.num_tokens()) / options.steps, cap,
      plans.front().most_planned->tokens);

  // By strategy, step and rank: each rank writes its own.
  std::vector<std::vector<Steps>> all(
      plans.size(), std::vector<Steps>(static_cast<std::size_t>(options.steps),
                                       Steps(static_cast<std::size_t>(options.ranks()))));
  run_paced(options, [&](Communicator& world) {
    std::vector<std::unique_ptr<Trainer>> trainers;
    for (const RunPlan& plan : plans)
      trainers.push_back(std::make_unique<Trainer>(plan, data, world));
    for (int n = 0; n < options.steps; ++n)
      for (std::size_t s = 0; s < plans.size(); ++s)
        all[s][static_cast<std::size_t>(n)][static_cast<std::size_t>(world.rank())] =
            take_step(*trainers[s], world, n + 1);
  });
  for (std::size_t s = 0; s < plans.size(); ++s)
    report(options, options.strategies[s], all[s]);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Options options;
  CLI::App app(
      "trains on unequal sequences over links that are slower between nodes, with batches planned "
      "in several ways by turns");
  app.option_defaults()->always_capture_default();
  app.add_option("--nodes", options.nodes, "nodes of ranks");
  app.add_option("--ranks-per-node", options.ranks_per_node, "ranks of a node, one core each");
  app.add_option("--within-mb-s", options.within_mb_s, "speed of a pair of ranks within a node");
  app.add_option("--between-mb-s", options.between_mb_s, "between nodes; 0: a ninth of that");
  app.add_option("--within-latency-us", options.within_latency_us, "latency within a node");
  app.add_option("--between-latency-us", options.between_latency_us,
                 "between nodes; 0: nine times that");
  app.add_option("--pipeline", options.pipeline, "stages; the other ranks share the batch")
      ->check(CLI::IsMember({1, 2}));
  app.add_option("--schedule", options.schedule, "of the pipeline");
  app.add_option("--strategy", options.strategies,
                 "flex, batch-ada, fixed:D; default: all three, D as large as possible")
      ->delimiter(',');
  app.add_option("--lengths", options.lengths, "wikipedia, commoncrawl-like or github-like");
  app.add_option("--max-length", options.max_length, "longer draws are drawn again");
  app.add_option("--batch", options.batch, "sequences of a step");
  app.add_option("--steps", options.steps, "of each strategy");
  app.add_option("--warm-up", options.warm_up, "first steps that are left out of the figures");
  app.add_option("--capacity-tokens", options.capacity_tokens,
                 "of a rank; 0: 0.3 of the maximal length, so that the longest need 4 ranks");
  app.add_option("--memory-cap-mib", options.memory_cap_mib, "instead of that");
  app.add_option("--layers", options.model.layers);
  app.add_option("--dim", options.model.dim);
  app.add_option("--heads", options.model.heads);
  app.add_option("--ffn", options.model.ffn_dim);
  app.add_option("--vocab", options.model.vocab_size);
  app.add_option("--profile-seconds", options.profile_seconds, "least time of each measurement");
  app.add_option("--seed", options.seed, "of lengths and weights");
  app.add_flag("--show-steps", options.show_steps, "a line for each step");
  CLI11_PARSE(app, argc, argv);
  if (options.ranks() % options.pipeline != 0 || options.steps <= options.warm_up) {
    fmt::print(stderr,
               "flexsp_training: needs as many ranks for each stage, and more steps than "
               "warm up\n");
    return 2;
  }
  if (options.strategies.empty())
    options.strategies = {fmt::format("fixed:{}", options.data_ranks()), "batch-ada", "flex"};
  sluice::keep_freed_memory();
  try {
    sluice::train(options);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "flexsp_training: {}\n", error.what());
    return static_cast<int>(sluice::exit_code_of(std::current_exception()));
  }
  return 0;
}
