// Schedules that go on from one update to the next, side by side: orders of amdp, pipelines of one
// pipe, and pp2xdp, which cuts the model in two and shares the batch among as many copies of that.
#include <algorithm>

#include "sluice/plan/redeal.h"
#include "sluice/report/comparison.h"
#include "sluice/schedule/staleness.h"
#include "sluice/schedule/validate.h"
#include "sluice/sim/steady.h"

namespace sluice {
namespace {

// Windows that are looked at: as many as it takes until the last are like those before them.
constexpr int kFewest = 6, kMost = 96;
constexpr double kMostOps = 2e6;

struct Variant {
  std::string label;
  const Generator* generator;
  int devices, microbatches;  // of one pipeline
  int copies = 1;             // of the pipeline
  AmdpOrder order = AmdpOrder::automatic;
  int border = 0;
};

constexpr const char* kTwoDevices = "pp2xdp";

// Why pipelines of two devices cannot share the batch, or "".
std::string pp2xdp_problem(const ComparisonRequest& request) {
  const int p = request.devices, m = request.microbatches;
  if (p % 2 != 0) return fmt::format("`devices` is {}: two to a pipeline need an even number", p);
  if (m % (p / 2) != 0)
    return fmt::format("`microbatches` is {}: {} pipelines of two devices need a multiple of {}", m,
                       p / 2, p / 2);
  if (!request.pricing.contention.empty())
    return fmt::format("`contention` is that of a pipeline of {} devices", p);
  if (request.profile && !request.profile->contention.empty())
    return fmt::format("the contention of the costs file is that of a pipeline of {} devices", p);
  return "";
}

std::vector<Variant> variants(const ComparisonRequest& request) {
  const int p = request.devices, m = request.microbatches;
  std::vector<Variant> out;
  for (const Generator* generator :
       request.generators.empty() ? all_generators() : request.generators) {
    if (!generator->knobs.windows) continue;
    if (!generator->knobs.orders) {
      out.push_back({std::string(generator->name), generator, p, m});
      continue;
    }
    for (const AmdpOrder order : {AmdpOrder::a, AmdpOrder::r, AmdpOrder::t, AmdpOrder::rounded_a}) {
      if ((order == AmdpOrder::a && p % 4 != 0) || (order == AmdpOrder::t && p % 2 != 0) ||
          (order == AmdpOrder::rounded_a && p % 4 == 0))
        continue;
      out.push_back(
          {fmt::format("{} {}", generator->name, name_of(order)), generator, p, m, 1, order});
    }
  }
  if (request.generators.empty() && p > 2 && pp2xdp_problem(request).empty())
    out.push_back({kTwoDevices, &find_generator("async-1f1b"), 2, m / (p / 2), p / 2});
  return out;
}

std::string command_of(const ComparisonRequest& request, const Variant& variant, int windows,
                       const OpTimes& times) {
  std::string out =
      fmt::format("sluice schedule {} -d {} -m {} --windows {}", variant.generator->name,
                  variant.devices, variant.microbatches, windows);
  if (variant.order != AmdpOrder::automatic)
    out += fmt::format(" --order {}", name_of(variant.order));
  if (variant.border > 1) out += fmt::format(" --border {}", variant.border);
  const Pricing& pricing = request.pricing;
  if (request.profile) {
    out += fmt::format(" --costs {} --redeal", pricing.costs_file);
  } else {
    const OpTimes usual = pricing.default_times();
    if (times.f != usual.f || times.i != usual.i || times.w != usual.w)
      out += fmt::format(" --times {},{},{}", times.f, times.i, times.w);
  }
  if (pricing.comm > 0) out += fmt::format(" --comm {}", pricing.comm);
  return out;
}

ComparedWindow price_windows(const ComparisonRequest& request, const Variant& variant,
                             int windows) {
  const Pricing& pricing = request.pricing;
  // A device of a shorter pipeline has as many times the layers.
  const double share = variant.copies;
  GeneratorOptions options;
  options.devices = variant.devices;
  options.microbatches = variant.microbatches;
  options.windows = windows;
  options.comm = pricing.comm;
  options.asynchronous.order = variant.order;
  options.asynchronous.border = variant.border;
  options.times = {pricing.times.f * share, pricing.times.i * share, pricing.times.w * share};
  if (request.profile) options = with_profile(*variant.generator, options, *request.profile);
  const Schedule schedule = generate_schedule(*variant.generator, options);
  const Validation validation = validate(schedule);
  if (!validation.valid())
    throw UserError(validation.problems.front().line(), ExitCode::invalid_schedule);
  Costs costs = request.profile ? redeal(*request.profile, schedule)
                                : unit_costs(schedule, options.times, pricing.comm, 1,
                                             pricing.shares(schedule));
  if (!request.profile) costs.contention = pricing.contention;
  const SimulateOptions simulated{.keep_after_i = pricing.keep_after_i};
  const Simulation all = simulate(schedule, costs, simulated);
  const auto steady = steady_window(schedule, costs, simulated, all);
  const SteadyWindow window = steady ? *steady : mean_window(schedule, costs);
  const Staleness staleness = staleness_of(schedule);
  ComparedWindow row;
  row.label = variant.label;
  row.command = command_of(request, variant, windows, options.times);
  row.windows = windows;
  row.steady = steady && staleness.steady();
  row.seconds = window.added;
  row.at_work = window.utilisation();
  row.peak = all.max_peak * share;
  row.weight_copies = variant.copies * *std::max_element(staleness.weight_copies.begin(),
                                                         staleness.weight_copies.end());
  row.max_mismatch = staleness.max_mismatch();
  row.mismatch_share = staleness.mismatch_share();
  row.max_delay = staleness.max_delay;
  return row;
}

ComparedWindow price(const ComparisonRequest& request, const Variant& variant) {
  // An UPDATE of each device waits for all.
  const double ops_of_window =
      3.0 * variant.devices * variant.microbatches + variant.devices * variant.devices;
  const auto most = static_cast<int>(std::clamp<double>(kMostOps / ops_of_window, kFewest, kMost));
  int windows = kFewest;
  ComparedWindow row = price_windows(request, variant, windows);
  while (!row.steady && windows < most) {
    windows = std::min(2 * windows, most);
    row = price_windows(request, variant, windows);
  }
  return row;
}

// Outer devices that run two forwards ahead where blocks meet, if that is faster.
ComparedWindow price_borders(const ComparisonRequest& request, const Variant& variant) {
  ComparedWindow row = price(request, variant);
  if (variant.order != AmdpOrder::a && variant.order != AmdpOrder::rounded_a) return row;
  Variant second = variant;
  second.border = 2;
  second.label += " border=2";
  ComparedWindow other = price(request, second);
  return other.seconds < row.seconds * (1 - 1e-9) ? other : row;
}

}  // namespace

void compare_windows(const ComparisonRequest& request, Comparison& comparison) {
  for (const Variant& variant : variants(request)) {
    try {
      ComparedWindow row = price_borders(request, variant);
      if (request.memory_cap > 0 && row.peak > request.memory_cap * (1 + 1e-12))
        comparison.left_out.emplace_back(
            variant.label, fmt::format("peak {} is over the cap {}", row.peak, request.memory_cap));
      else
        comparison.windows.push_back(std::move(row));
    } catch (const UserError& error) {
      comparison.left_out.emplace_back(variant.label, error.what());
    }
  }
  if (request.generators.empty() && request.devices > 2)
    if (const std::string problem = pp2xdp_problem(request); !problem.empty())
      comparison.left_out.emplace_back(kTwoDevices, problem);
  std::stable_sort(comparison.windows.begin(), comparison.windows.end(),
                   [](const ComparedWindow& a, const ComparedWindow& b) {
                     return std::pair(a.seconds, a.weight_copies) <
                            std::pair(b.seconds, b.weight_copies);
                   });
}

}  // namespace sluice
