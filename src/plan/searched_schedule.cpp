#include "sluice/plan/searched_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/config/fields.h"
#include "sluice/config/resolve.h"
#include "sluice/plan/run_memory.h"
#include "sluice/run/op_costs.h"
#include "sluice/run/step_kinds.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/text_format.h"
#include "sluice/schedule/transforms/reductions.h"
#include "sluice/schedule/transforms/split_backward.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

constexpr double kMebibyte = 1 << 20;

// With the configuration's backwards, and with what running it takes.
Schedule lowered(const Config& config, Schedule schedule) {
  const ParallelismConfig& parallelism = config.parallelism;
  if (parallelism.fuse_backward) schedule = fuse_backward(pull_weight_gradients(schedule));
  Validation validation = validate(schedule, {.staleness = staleness_bounds(config)});
  if (!validation.valid())
    throw UserError(fmt::format("{} is not a valid schedule: {}", schedule.name,
                                validation.problems.front().line()),
                    ExitCode::invalid_schedule);
  return mesh_of(config).data() > 1 ? add_reductions(validation.lowered)
                                    : std::move(validation.lowered);
}

const Generator& generator_of(const Config& config) {
  return find_generator(config.parallelism.pipeline_parallel_schedule);
}

bool has_caps(const Config& config) { return !config.parallelism.device_memory_mib.empty(); }

double cap_of(const RunPlan& plan, std::size_t device) {
  const std::vector<double>& caps = plan.config.parallelism.device_memory_mib;
  return kMebibyte * caps[caps.size() == 1 ? 0 : device];
}

// The time of each stage's ops on a whole microbatch.
std::vector<OpTimes> stage_times(const RunPlan& plan, const PartTimes& times) {
  std::vector<OpTimes> out;
  for (int stage = 0; stage < plan.schedule.num_stages(); ++stage) {
    const auto time = [&](double PartTimes::Ops::*op) {
      return Parts{times.layer.*op, times.embedding.*op, times.head.*op}.of(plan.layers_of(stage));
    };
    out.push_back({time(&PartTimes::Ops::f), time(&PartTimes::Ops::i), time(&PartTimes::Ops::w)});
  }
  return out;
}

// An order, and what it takes.
struct Candidate {
  RunPlan plan;
  double makespan = 0;
  double over = 0;  // bytes that the worst device needs beyond its cap; at most 0: it fits
};

// `plan` with fewer microbatches of the same sequences.
RunPlan with_microbatches(RunPlan plan, int microbatches) {
  plan = for_search(std::move(plan), microbatches);
  Config& config = plan.config;
  config.training.global_batch_size =
      static_cast<int>(plan.sequences() * plan.mesh.data() * microbatches);
  config.parallelism.num_microbatches = microbatches;
  plan.schedule.num_microbatches = microbatches;
  return plan;
}

class Search {
 public:
  Search(const RunPlan& plan, const RunTimes& times)
      : plan_(for_search(plan, plan.schedule.num_microbatches)),
        times_(times),
        options_(generator_options(plan_.config)) {
    options_.stage_times = stage_times(plan_, times.parts);
    options_.suggest_cap = false;
    if (times.link.bytes_per_time > 0 || times.link.latency > 0)
      options_.comm = search_times(costs_of(plan_)).comm;
  }

  // The order under caps of so many stage-activations (none: as configured); nothing where the
  // generator finds none that fits them.
  std::optional<Candidate> with_caps(const std::vector<double>& activations) const {
    GeneratorOptions options = options_;
    if (!activations.empty()) options.memory_cap = MemoryCap(activations);
    return made_by(generator_of(plan_.config), options);
  }

  std::optional<Candidate> made_by(const Generator& generator,
                                   const GeneratorOptions& options) const {
    try {
      Candidate made{.plan = plan_};
      made.plan.schedule = lowered(plan_.config, generate_schedule(generator, options));
      price(made);
      return made;
    } catch (const UserError&) {
      return std::nullopt;
    }
  }

  const GeneratorOptions& options() const { return options_; }

 private:
  Costs costs_of(const RunPlan& plan) const {
    Costs costs = costs_of_parts(times_.parts, plan);
    costs.default_link = times_.link;
    return costs;
  }

  void price(Candidate& made) const {
    const Simulation simulation = simulate(made.plan.schedule, costs_of(made.plan));
    made.makespan = simulation.makespan;
    made.plan.peak_stash_bytes = predicted_peaks(made.plan);
    if (!has_caps(plan_.config)) return;
    const std::vector<RankMemory> ranks = memory_by_rank(made.plan);
    made.over = -std::numeric_limits<double>::infinity();
    for (std::size_t d = 0; d < ranks.size(); ++d)
      made.over = std::max(made.over, static_cast<double>(ranks[d].total()) - cap_of(plan_, d));
  }

  const RunPlan plan_;
  const RunTimes& times_;
  GeneratorOptions options_;
};

// Stage-activations that each device could hold if all that its cap leaves were for them, at most
// those of so many microbatches.
std::vector<double> most_activations(const Candidate& loose, int microbatches) {
  const RunPlan& plan = loose.plan;
  const std::vector<RankMemory> ranks = memory_by_rank(plan);
  const Costs bytes = byte_costs(plan);
  std::vector<double> out;
  for (std::size_t d = 0; d < ranks.size(); ++d) {
    double least = std::numeric_limits<double>::infinity();  // of one activation
    for (const int stage : ranks[d].stages) {
      double activation = 0;
      for (int slice = 0; slice < plan.schedule.num_slices; ++slice)
        activation += bytes.at(stage, slice).after_f;
      least = std::min(least, std::max(activation, 1.0));
    }
    const double left = cap_of(plan, d) - static_cast<double>(ranks[d].total() - ranks[d].stash);
    const auto all = static_cast<double>(ranks[d].stages.size()) * microbatches;
    out.push_back(std::clamp(left / least, 0.0, all));
  }
  return out;
}

// The fixed orders that share adaptive-v's placement: whichever fits, adaptive-v is no slower.
constexpr std::array kFixedOrders = {"v-min", "v-half", "zb-v"};

[[noreturn]] void throw_too_small(const RunPlan& plan, double over) {
  const std::vector<double>& caps = plan.config.parallelism.device_memory_mib;
  const double raise = std::ceil(over / kMebibyte * 100) / 100;
  const std::string& name = plan.config.parallelism.pipeline_parallel_schedule;
  if (caps.size() > 1)
    throw user_error(
        "parallelism.device_memory_mib lists {} caps: no order of {} fits them; each has to be "
        "{:.6g} MiB larger",
        caps.size(), name, raise);
  throw user_error(
      "parallelism.device_memory_mib is {:.6g}: no order of {} fits; the least possible is {:.6g}",
      caps[0], name, std::ceil((caps[0] + over / kMebibyte) * 100) / 100);
}

// Caps by device, in stage-activations, under which orders are looked for.
struct Caps {
  static constexpr int kSteps = 32;
  std::vector<double> most;  // if all that is left were for activations

  std::vector<double> at(int step) const {
    std::vector<double> caps;
    for (const double cap : most)
      caps.push_back(std::max(cap * step / kSteps, 1.0));
    return caps;
  }
};

// The largest number of activations whose order fits, by halving; 0: none does. More activations
// never make an order slower, and mostly need more bytes.
template <typename Fits>
int largest_step(const Fits& fits) {
  int enough = 0, too_many = Caps::kSteps + 1;
  while (too_many - enough > 1) {
    const int middle = (enough + too_many) / 2;
    (fits(middle) ? enough : too_many) = middle;
  }
  return enough;
}

// The fastest order within the caps.
Candidate best_under_caps(const RunPlan& plan, const RunTimes& times) {
  std::optional<Candidate> best;
  double least_over = std::numeric_limits<double>::infinity();
  const auto fits = [&](const std::optional<Candidate>& made) {
    if (made) least_over = std::min(least_over, made->over);
    return made && made->over <= 0;
  };
  const auto consider = [&](std::optional<Candidate> made) {
    if (!fits(made)) return false;
    if (!best || made->makespan < best->makespan) best = std::move(made);
    return true;
  };
  const Generator& generator = generator_of(plan.config);
  const int microbatches = plan.schedule.num_microbatches;
  const int few = std::min(microbatches, 2 * plan.schedule.num_devices());
  const Search search(plan, times), probe(with_microbatches(plan, few), times);
  const std::vector<double> all = {static_cast<double>(microbatches) *
                                   generator.knobs.default_stages_per_device};
  const std::optional<Candidate> loose = probe.with_caps(all);
  SLUICE_CHECK(loose, "{} finds no order without a cap", generator.name);
  if (!fits(loose) || !consider(search.with_caps(all))) {
    constexpr int kQuick = 256;  // devices times microbatches
    const int devices = plan.schedule.num_devices();
    const Caps caps{most_activations(*loose, microbatches)};
    if (devices * microbatches <= kQuick) {
      // A stash may grow at I, and then fewer activations may need more bytes: all are tried, those
      // that do not depend on the caps, too.
      for (int step = Caps::kSteps; step > 0; --step)
        consider(search.with_caps(caps.at(step)));
      for (int halves = 4 * devices; halves > 1; --halves)
        consider(search.with_caps({halves / 2.0}));
    } else {
      // With as many microbatches as it takes to fill the pipeline: more of them repeat what these
      // do.
      int step = largest_step([&](int middle) { return fits(probe.with_caps(caps.at(middle))); });
      while (step > 0 && !consider(search.with_caps(caps.at(step))))
        --step;
    }
  }
  if (generator.name == std::string_view("adaptive-v"))
    for (const char* name : kFixedOrders) {
      GeneratorOptions options = search.options();
      options.memory_cap = std::nullopt;
      options.stage_times = {};
      consider(search.made_by(find_generator(name), options));
    }
  if (!best) throw_too_small(plan, least_over);
  return std::move(*best);
}

}  // namespace

bool is_searched(const Config& config) {
  return config.parallelism.pipeline_parallel_schedule_csv.empty() &&
         generator_of(config).knobs.times;
}

Schedule first_schedule(const Config& config) {
  const std::string& csv = config.parallelism.pipeline_parallel_schedule_csv;
  if (!csv.empty()) return lowered(config, read_schedule_file(csv));
  const Generator& generator = generator_of(config);
  GeneratorOptions options = generator_options(config);
  if (generator.knobs.memory_cap && has_caps(config))
    options.memory_cap =
        static_cast<double>(options.microbatches) * generator.knobs.default_stages_per_device;
  try {
    return lowered(config, generate_schedule(generator, options));
  } catch (const UserError& error) {
    throw UserError(as_keys(error.what()), error.code());
  }
}

std::vector<std::int64_t> predicted_peaks(const RunPlan& plan) {
  std::vector<std::int64_t> peaks(static_cast<std::size_t>(plan.schedule.num_devices()), 0);
  for_step_kinds(plan, [&](const RunPlan& step) {
    const Simulation simulation = simulate(step.schedule, byte_costs(step));
    for (std::size_t d = 0; d < peaks.size(); ++d)
      peaks[d] = std::max(peaks[d], static_cast<std::int64_t>(simulation.devices[d].peak_bytes));
  });
  return peaks;
}

void search_schedule(RunPlan& plan, const RunTimes& times, std::vector<std::string>& notes) {
  const Generator& generator = generator_of(plan.config);
  if (!generator.knobs.memory_cap || !has_caps(plan.config)) {
    if (auto found = Search(plan, times).with_caps({}))
      set_schedule(plan, std::move(found->plan.schedule));
    return;
  }
  Candidate best = best_under_caps(plan, times);
  Schedule& chosen = best.plan.schedule;
  if (chosen.name != generator.name)
    notes.push_back(
        fmt::format("{}: the order of {} is the fastest that fits", generator.name, chosen.name));
  set_schedule(plan, std::move(chosen));
}

}  // namespace sluice
