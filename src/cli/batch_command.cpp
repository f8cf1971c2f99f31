// sluice batch: which groups of ranks share the sequences of a global batch, microbatch by
// microbatch, and how far from the best such a plan can be.
#include <algorithm>
#include <chrono>

#include "sluice/base/files.h"
#include "sluice/base/say.h"
#include "sluice/base/text.h"
#include "sluice/cli/batch_lengths.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/output.h"
#include "sluice/cost/costs.h"
#include "sluice/plan/flexsp/buckets.h"
#include "sluice/plan/flexsp/milp.h"
#include "sluice/report/batch.h"

namespace sluice::cli {
namespace {

using flexsp::Bucketing;

// The bins of the published code, and bins without waste.
constexpr double kFills[] = {0.9, 1.0};
// As its authors ran the integer program.
constexpr double kMilpSeconds = 5;

struct Flags {
  std::string lengths;
  int count = 512, seed = 0, max_length = 196'608, pad = 128;
  std::string overlong = "error";
  int devices = 0;
  std::string model, costs;
  double memory_mib = 30'720;
  int capacity_tokens = 0;
  std::string sharding = "parameters";
  int heads = 64, min_degree = 1, trials = 5;
  std::string strategy = "flex", bucketing = "dp";
  bool no_sort = false, exact = false, table = false;
  OutputFlags output;
  CLI::App* command = nullptr;

  bool given(const char* flag) const { return command->count(flag) > 0; }
};

enum class Strategy { flex, milp, fixed, batch_ada, tp_cp };
struct Chosen {
  Strategy strategy = Strategy::flex;
  int degree = 1;  // of `fixed`
};

Chosen strategy_of(const std::string& name) {
  if (name == "flex") return {Strategy::flex};
  if (name == "milp") return {Strategy::milp};
  if (name == "batch-ada") return {Strategy::batch_ada};
  if (name == "tp-cp") return {Strategy::tp_cp};
  if (name.starts_with("fixed:"))
    if (const auto degree = parse_int(name.substr(6)); degree && *degree >= 1 && *degree <= 1 << 20)
      return {Strategy::fixed, static_cast<int>(*degree)};
  const std::vector<std::string> known = {"flex", "milp", "fixed:8", "batch-ada", "tp-cp"};
  const std::string nearest = nearest_name(name, known);
  throw user_error("--strategy is '{}'{}; needs one of flex, milp, fixed:D, batch-ada, tp-cp", name,
                   nearest.empty() ? "" : fmt::format(": did you mean '{}'?", nearest));
}

struct Buckets {
  Bucketing kind = Bucketing::dp;
  std::int64_t width = 2048;
};

Buckets buckets_of(const std::string& name) {
  if (name == "dp") return {};
  if (name == "none") return {Bucketing::none};
  if (name.starts_with("fixed:"))
    if (const auto width = parse_int(name.substr(6)); width && *width >= 1 && *width <= kMostTokens)
      return {Bucketing::fixed, *width};
  throw user_error("--bucketing is '{}': needs dp, fixed:2048 (or another width in tokens) or none",
                   name);
}

StateSharding sharding_of(const std::string& name) {
  if (name == "parameters") return StateSharding::parameters;
  if (name == "states") return StateSharding::states;
  if (name == "none") return StateSharding::none;
  throw user_error("--sharding is '{}': needs parameters, states or none", name);
}

// Each says the same as the other.
void check_apart(const Flags& flags, const char* flag, const char* other, const char* why) {
  if (flags.given(flag) && flags.given(other))
    throw user_error("{} and {} are both given: {}; leave one out", flag, other, why);
}

void check(const Flags& flags, const Chosen& chosen) {
  check_apart(flags, "--costs", "--model", "each says what sequences cost");
  check_apart(flags, "--costs", "--heads", "the costs file says the heads");
  check_apart(flags, "--costs", "--sharding", "the costs file says the bytes of the states");
  check_apart(flags, "--capacity-tokens", "--memory-cap-mib", "each says how much a device holds");
  if (!flags.given("--devices"))
    throw user_error("--devices is missing: how many share the batch?");
  if (!flags.given("--costs") && !flags.given("--model"))
    throw user_error("--model or --costs is needed: what do sequences cost?");
  const bool lengths = flags.given("--lengths");
  for (const char* flag : {"--lengths", "--count", "--seed", "--pad", "--overlong", "--trials",
                           "--strategy", "--bucketing", "--no-sort", "--exact"})
    if (flags.table && lengths)
      check_apart(flags, "--table", flag, "the table is of single sequences, and plans nothing");
  if (!lengths && !flags.table)
    throw user_error("--lengths is missing: a file, wikipedia, commoncrawl-like or github-like");
  for (const char* flag : {"--count", "--seed", "--pad", "--overlong", "--trials", "--strategy",
                           "--bucketing", "--no-sort", "--exact"})
    check_needs(flags.given(flag), flag, lengths, "--lengths");
  const bool searches = chosen.strategy == Strategy::flex || chosen.strategy == Strategy::milp;
  for (const char* flag : {"--trials", "--bucketing", "--no-sort"})
    check_needs(flags.given(flag), flag, searches, "--strategy flex or milp");
  if (chosen.strategy == Strategy::tp_cp && !flags.costs.empty())
    throw user_error(
        "--strategy is 'tp-cp' and --costs is given: it does not say the bytes of the whole model; "
        "use --model");
  check_needs(flags.given("--min-degree"), "--min-degree", chosen.strategy != Strategy::tp_cp,
              "a strategy of sequence parallelism");
  check_needs(flags.exact, "--exact", chosen.strategy == Strategy::flex, "--strategy flex");
  check_apart(flags, "--exact", "--bucketing", "an exact search takes lengths as they are");
}

SequenceCosts costs_of(const Flags& flags) {
  if (!flags.costs.empty())
    return parse_file(flags.costs, kMaxCostsBytes, sequence_costs_from_json);
  const StateSharding sharding = sharding_of(flags.sharding);
  SequenceCosts costs =
      published_sequence_costs(flags.model, flags.devices, flags.max_length, sharding);
  costs.heads = flags.heads;
  return costs;
}

std::int64_t capacity_of(const Flags& flags, const SequenceCosts& costs) {
  if (flags.capacity_tokens > 0) return flags.capacity_tokens;
  constexpr double kMiB = 1 << 20;
  const std::int64_t tokens = costs.capacity_tokens(flags.memory_mib * kMiB);
  if (tokens < 1)
    throw user_error(
        "--memory-cap-mib is {}: the states take {:.0f} MiB of a device, which leaves room for no "
        "token; give more memory{}",
        number(flags.memory_mib), costs.state_bytes / kMiB,
        !flags.costs.empty()             ? ""
        : flags.sharding == "parameters" ? ", or more devices"
                                         : ", more devices, or --sharding parameters");
  return tokens;
}

flexsp::PlanOptions plan_options(const Flags& flags) {
  flexsp::PlanOptions options{.trials = flags.trials, .sort = !flags.no_sort, .exact = flags.exact};
  const Buckets buckets = buckets_of(flags.bucketing);
  options.bucketing = buckets.kind;
  options.bucket_width = buckets.width;
  return options;
}

// The plan of one degree, or the reason why there is none.
flexsp::PlannedBatch fixed_plan(const BatchReport& report, int degree) {
  const std::vector<int>& degrees = report.cluster.degrees;
  if (std::find(degrees.begin(), degrees.end(), degree) == degrees.end()) {
    for (const flexsp::ExcludedDegree& excluded : report.excluded)
      if (excluded.degree == degree)
        throw user_error("--strategy is 'fixed:{}': no groups of {}: {}", degree, degree,
                         excluded.reason);
    throw user_error("--strategy is 'fixed:{}': a degree is a power of two up to {}", degree,
                     counted(report.cluster.devices, "device"));
  }
  auto batch = flexsp::fixed_degree(report.cluster, report.lengths, degree, kFills[0]);
  if (!batch) {
    const auto longest = std::max_element(report.lengths.begin(), report.lengths.end());
    throw user_error(
        "--strategy is 'fixed:{}': sequence {} has {} with padding, and a group of {} holds {}: "
        "use a larger degree, or give devices more memory",
        degree, longest - report.lengths.begin(), counted(*longest, "token"), degree,
        degree * report.cluster.capacity_tokens);
  }
  return *std::move(batch);
}

void plan(BatchReport& report, const Flags& flags, const Chosen& chosen) {
  const flexsp::PlanOptions options = plan_options(flags);
  switch (chosen.strategy) {
    case Strategy::flex:
      report.batch = flexsp::plan_batch(report.cluster, report.lengths, options);
      return;
    case Strategy::milp:
      report.batch = flexsp::plan_by_milp(report.cluster, report.lengths, options, kMilpSeconds);
      return;
    case Strategy::fixed: report.batch = fixed_plan(report, chosen.degree); return;
    case Strategy::batch_ada:
      if (auto adapted = flexsp::batch_ada(report.cluster, report.lengths, kFills[0]))
        report.batch = std::move(adapted->batch);
      break;
    case Strategy::tp_cp:
      report.tensor_context = flexsp::tensor_context(
          report.cluster, report.lengths,
          {.model_state_bytes = published_sequence_costs(flags.model, flags.devices,
                                                         flags.max_length, StateSharding::none)
                                    .state_bytes});
      break;
  }
  if (!report.batch && !report.tensor_context)
    throw user_error("--strategy is '{}': a sequence does not fit; give devices more memory",
                     report.strategy);
}

void add_baselines(BatchReport& report) {
  for (const int degree : report.cluster.degrees)
    for (const double fill : kFills) {
      const auto batch = flexsp::fixed_degree(report.cluster, report.lengths, degree, fill);
      report.fixed.push_back({degree, fill, batch ? std::optional(batch->seconds) : std::nullopt});
    }
  if (const auto adapted = flexsp::batch_ada(report.cluster, report.lengths, kFills[0]))
    report.batch_ada = {adapted->degree, kFills[0], adapted->batch.seconds};
}

template <typename Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void read_lengths(const Flags& flags, BatchReport& report) {
  LengthsRequest request{.from = flags.lengths};
  if (flags.given("--count")) request.count = flags.count;
  request.seed = static_cast<std::uint64_t>(flags.seed);
  request.longest = flags.max_length;
  const auto overlong = named<Overlong>(flags.overlong);
  if (!overlong)
    throw user_error("--overlong is '{}': needs error, drop or truncate", flags.overlong);
  const GivenLengths given = given_lengths(request);
  if (!given.from_file && flags.given("--overlong"))
    throw user_error("--overlong is for files: {} is drawn again until {} fit; leave the flag out",
                     given.source, counted(flags.count, "sequence"));
  if (given.from_file && flags.given("--seed"))
    throw user_error("--seed is for distributions: '{}' is a file; leave the flag out",
                     given.source);
  if (const auto found = std::ssize(given.lengths);
      given.from_file && flags.given("--count") && found < flags.count)
    say("sluice: {} has {}, fewer than --count {}: the batch has them all\n", given.source,
        counted(found, "sequence"), flags.count);
  if (given.empty > 0)
    say("sluice: {}: {} without a token left out\n", given.source,
        counted(given.empty, "document"));
  const FittedLengths fitted =
      fitted_lengths(given, {.longest = flags.max_length,
                             .pad = flags.pad,
                             .largest_degree = report.cluster.degrees.back(),
                             .capacity_tokens = report.cluster.capacity_tokens,
                             .overlong = *overlong});
  report.source = given.source;
  report.lengths = fitted.padded;
  report.tokens = fitted.tokens;
  report.dropped = fitted.dropped;
  report.truncated = fitted.truncated;
}

void run(const Flags& flags) {
  const Format format = flags.output.format("text,json,svg");
  const Chosen chosen = strategy_of(flags.strategy);
  check(flags, chosen);
  plan_options(flags);  // refuses what is wrong with them before lengths are read
  BatchReport report;
  report.cluster.devices = flags.devices;
  report.cluster.costs = costs_of(flags);
  report.cluster.capacity_tokens = capacity_of(flags, report.cluster.costs);
  report.cluster.degrees = flexsp::usable_degrees(report.cluster.costs, flags.devices,
                                                  flags.min_degree, flags.devices, report.excluded);
  if (flags.table) {
    if (format == Format::svg)
      throw user_error("--table and --format svg are both given: a table is text or json");
    DegreeTable table = degree_table(report.cluster, flags.max_length);
    table.excluded = std::move(report.excluded);
    return flags.output.write(format == Format::json ? degree_table_json(table)
                                                     : degree_table_text(table));
  }
  report.strategy = flags.strategy;
  read_lengths(flags, report);
  flexsp::check_lengths(report.cluster, report.lengths);
  if (flags.exact && !flexsp::can_be_exact(report.cluster))
    throw user_error(
        "--exact: {} have too many mixes of groups to search each to the end; leave it out, or "
        "allow "
        "fewer with --min-degree",
        counted(report.cluster.devices, "device"));
  report.plan_seconds = seconds_of([&] { plan(report, flags, chosen); });
  report.bounds_seconds = seconds_of([&] {
    if (report.batch)
      report.bounds =
          flexsp::lower_bounds(report.cluster, report.lengths, *report.batch, flags.exact);
    report.bound_of_any_cuts = flexsp::lower_bound_of_any_cuts(report.cluster, report.lengths);
  });
  add_baselines(report);
  flags.output.write(format == Format::json  ? batch_json(report)
                     : format == Format::svg ? batch_svg(report)
                                             : batch_text(report));
}

}  // namespace

void add_batch(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "batch", "plan which ranks share which sequences of a batch (docs/flexsp.md)");
  flags->command = command;
  add_text(*command, "--lengths", flags->lengths,
           "lengths of the batch's sequences: a file with one per line, a .idx, or a distribution: "
           "wikipedia, commoncrawl-like, github-like")
      ->type_name("FILE|NAME");
  add_int(*command, "--count", flags->count, 1, kMostSequences,
          "sequences: draws (default 512), or the first ones of a file (default: all)");
  add_int(*command, "--seed", flags->seed, 0, std::numeric_limits<int>::max(),
          "of the draws (default 0)");
  add_int(*command, "--max-length", flags->max_length, 1, kMostTokens,
          "longest sequence in tokens (default 196608)");
  add_int(*command, "--pad", flags->pad, 1, 1 << 20,
          "every length is rounded up to a multiple of N (default 128)");
  add_text(*command, "--overlong", flags->overlong,
           "what to do with sequences of a file that are too long: error (default), drop, truncate")
      ->type_name("NAME");
  add_int(*command, "-d,--devices", flags->devices, 1, 65'536, "devices that share the batch");
  add_text(*command, "--model", flags->model,
           fmt::format("published costs of a model: {}", join(published_sequence_models(), ", ")))
      ->type_name("NAME");
  add_text(*command, "--costs", flags->costs,
           "costs file with a section `flexsp`, instead of --model")
      ->type_name("FILE");
  add_number(*command, "--memory-cap-mib", flags->memory_mib, 1, 1e9,
             "memory of a device in MiB (default 30720)");
  add_int(*command, "--capacity-tokens", flags->capacity_tokens, 1, kMostTokens,
          "tokens that a device holds, instead of --memory-cap-mib");
  add_text(*command, "--sharding", flags->sharding,
           "what of the model's states is divided among the devices: parameters (default), states, "
           "none")
      ->type_name("NAME");
  add_int(*command, "--heads", flags->heads, 1, 1 << 20,
          "attention heads: a degree divides them (default 64)");
  add_int(*command, "--min-degree", flags->min_degree, 1, 65'536,
          "ranks of the smallest groups (default 1)");
  add_int(
      *command, "--trials", flags->trials, 1, 1'000,
      "numbers of microbatches that are tried, from the fewest that hold the batch (default 5)");
  add_text(
      *command, "--strategy", flags->strategy,
      "flex (default), milp, fixed:D (groups of D), batch-ada (the best D of the batch), tp-cp "
      "(tensor x context parallelism)")
      ->type_name("NAME");
  add_text(*command, "--bucketing", flags->bucketing,
           "how lengths are rounded up to buckets: dp (default), fixed:2048, none")
      ->type_name("NAME");
  command->add_flag("--no-sort", flags->no_sort,
                    "cut the batch into microbatches as it is, not longest first");
  command->add_flag("--exact", flags->exact,
                    "search every microbatch to the end, however long that takes");
  command->add_flag("--table", flags->table,
                    "show the time of a sequence by length and degree, and plan nothing");
  flags->output.add(*command, "text (default), json, svg");
  command->callback([flags] { run(*flags); });
}

}  // namespace sluice::cli
