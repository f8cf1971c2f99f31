// Schedules that go on from one update to the next, side by side: orders of amdp, pipelines of one
// pipe, and pp2xdp, which cuts the model in two and shares the batch among as many copies of that.
#include <algorithm>

#include "sluice/plan/redeal.h"
#include "sluice/report/comparison.h"
#include "sluice/schedule/staleness.h"
#include "sluice/schedule/transforms/first_windows.h"
#include "sluice/schedule/validate.h"

namespace sluice {
namespace {

constexpr int kWindows = 6;  // enough that the last is like the one before

struct Variant {
  std::string label;
  const Generator* generator;
  int devices, microbatches;  // of one pipeline
  int copies = 1;             // of the pipeline
  AmdpOrder order = AmdpOrder::automatic;
};

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
  const bool alike = request.pricing.contention.empty() && !request.profile;
  if (request.generators.empty() && alike && p > 2 && p % 2 == 0 && m % (p / 2) == 0)
    out.push_back({"pp2xdp", &find_generator("async-1f1b"), 2, m / (p / 2), p / 2});
  return out;
}

std::string command_of(const ComparisonRequest& request, const Variant& variant,
                       const OpTimes& times) {
  std::string out =
      fmt::format("sluice schedule {} -d {} -m {} --windows {}", variant.generator->name,
                  variant.devices, variant.microbatches, kWindows);
  if (variant.order != AmdpOrder::automatic)
    out += fmt::format(" --order {}", name_of(variant.order));
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

ComparedWindow price(const ComparisonRequest& request, const Variant& variant) {
  const Pricing& pricing = request.pricing;
  // A device of a shorter pipeline has as many times the layers.
  const double share = variant.copies;
  GeneratorOptions options;
  options.devices = variant.devices;
  options.microbatches = variant.microbatches;
  options.windows = kWindows;
  options.comm = pricing.comm;
  options.asynchronous.order = variant.order;
  options.times = {pricing.times.f * share, pricing.times.i * share, pricing.times.w * share};
  if (request.profile) options = with_profile(*variant.generator, options, *request.profile);
  const Schedule schedule = generate_schedule(*variant.generator, options);
  const Validation validation = validate(schedule);
  if (!validation.valid())
    throw UserError(validation.problems.front().line(), ExitCode::invalid_schedule);
  const auto simulated = [&](const Schedule& windows) {
    Costs costs = request.profile ? redeal(*request.profile, windows)
                                  : unit_costs(windows, options.times, pricing.comm, 1,
                                               pricing.shares(windows));
    if (!request.profile) costs.contention = pricing.contention;
    return simulate(windows, costs, {.keep_after_i = pricing.keep_after_i});
  };
  const Simulation all = simulated(schedule);
  const Simulation before = simulated(first_windows(schedule, kWindows - 1));
  ComparedWindow row;
  row.label = variant.label;
  row.command = command_of(request, variant, options.times);
  row.seconds = all.makespan - before.makespan;
  double work = 0;
  for (std::size_t d = 0; d < all.devices.size(); ++d)
    work = std::max(work, all.devices[d].busy - before.devices[d].busy);
  row.at_work = row.seconds > 0 ? work / row.seconds : 0;
  row.peak = all.max_peak * share;
  const Staleness staleness = staleness_of(schedule);
  row.weight_copies = variant.copies * *std::max_element(staleness.weight_copies.begin(),
                                                         staleness.weight_copies.end());
  row.max_mismatch = staleness.max_mismatch();
  row.mismatch_share = staleness.mismatch_share();
  row.max_delay = staleness.max_delay;
  return row;
}

}  // namespace

void compare_windows(const ComparisonRequest& request, Comparison& comparison) {
  for (const Variant& variant : variants(request)) {
    try {
      ComparedWindow row = price(request, variant);
      if (request.memory_cap > 0 && row.peak > request.memory_cap * (1 + 1e-12))
        comparison.left_out.emplace_back(
            variant.label, fmt::format("peak {} is over the cap {}", row.peak, request.memory_cap));
      else
        comparison.windows.push_back(std::move(row));
    } catch (const UserError& error) {
      comparison.left_out.emplace_back(variant.label, error.what());
    }
  }
  std::stable_sort(comparison.windows.begin(), comparison.windows.end(),
                   [](const ComparedWindow& a, const ComparedWindow& b) {
                     return std::pair(a.seconds, a.weight_copies) <
                            std::pair(b.seconds, b.weight_copies);
                   });
}

}  // namespace sluice
