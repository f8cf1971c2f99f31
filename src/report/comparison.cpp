#include "sluice/report/comparison.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "sluice/base/text.h"
#include "sluice/plan/redeal.h"
#include "sluice/schedule/validate.h"

namespace sluice {
namespace {

struct Variant {
  const Generator* generator;
  int slices = 1;
  double cap = 0;  // device-microbatches; 0: none
};

// Each schedule once; sliced ones with the wanted number of slices, and without where that is a
// schedule of its own; capped ones at the cap, or at a few caps.
std::vector<Variant> variants(const ComparisonRequest& request) {
  const int p = request.devices;
  const int slices = request.slicing.slices;
  std::vector<Variant> out;
  for (const Generator* generator :
       request.generators.empty() ? all_generators() : request.generators) {
    if (generator->knobs.windows) continue;  // compare_windows
    const Knobs& knobs = generator->knobs;
    if (knobs.block) continue;
    if (knobs.memory_cap) {
      std::vector<double> caps = {0.5 * p, 0.75 * p, 1.0 * p};
      // A V has no use for more than 1F1B's memory; one stage per device has.
      if (knobs.default_stages_per_device == 1) caps.push_back(1.5 * p);
      if (request.memory_cap > 0) caps = {request.memory_cap};
      for (const double cap : caps)
        out.push_back({generator, 1, cap});
      if (!knobs.slices || slices == 1) continue;
      // In flight are k-1 slices more than there were microbatches, each 1/k of one.
      for (const double cap : caps)
        out.push_back(
            {generator, slices, request.memory_cap > 0 ? cap : (cap + slices - 1) / slices});
    } else if (knobs.slices) {
      // Unsliced, the Seq1F1B family is 1F1B, interleaved 1F1B and ZB-H1's like.
      if (!generator->name.starts_with("seq")) out.push_back({generator});
      if (slices > 1) out.push_back({generator, slices});
    } else {
      out.push_back({generator});
    }
  }
  return out;
}

int stages_of(const ComparisonRequest& request, const Knobs& knobs) {
  return knobs.stages_per_device ? request.stages_per_device : knobs.default_stages_per_device;
}

std::string label_of(const ComparisonRequest& request, const Variant& variant) {
  const Knobs& knobs = variant.generator->knobs;
  std::string label(variant.generator->name);
  if (const int v = stages_of(request, knobs); v != knobs.default_stages_per_device)
    label += fmt::format(" v={}", v);
  if (variant.slices > 1) label += fmt::format(" k={}", variant.slices);
  if (knobs.memory_cap) label += fmt::format(" cap={}", number(variant.cap));
  return label;
}

// A path as one word of a shell.
std::string shell_word(const std::string& text) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./_-+=:,@%";
  if (text.find_first_not_of(kPlain) == text.npos) return text;
  std::string out = "'";
  for (const char c : text)
    out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

bool same(const OpTimes& a, const OpTimes& b) { return a.f == b.f && a.i == b.i && a.w == b.w; }

// What is not given has its default. {} writes a double so that it reads back as the same number.
std::string command_of(const ComparisonRequest& request, const Variant& variant,
                       const GeneratorOptions& options, const OpTimes& times) {
  const Knobs& knobs = variant.generator->knobs;
  std::string out = fmt::format("sluice schedule {} -d {} -m {}", variant.generator->name,
                                request.devices, request.microbatches);
  if (knobs.stages_per_device && options.stages_per_device != knobs.default_stages_per_device)
    out += fmt::format(" --stages-per-device {}", options.stages_per_device);
  if (variant.slices > 1) {
    out += fmt::format(" --slices {}", variant.slices);
    if (request.slicing.balanced)
      out += " --slice-sizes balanced";
    else if (!request.slicing.sizes.empty())
      out += fmt::format(" --slice-sizes {}", fmt::join(request.slicing.sizes, ","));
    if (request.slicing.multiple > 0)
      out += fmt::format(" --slice-multiple {}", request.slicing.multiple);
  }
  if (knobs.memory_cap) out += fmt::format(" --memory-cap {}", options.memory_cap->of(0));
  const Pricing& pricing = request.pricing;
  if (pricing.model || (variant.slices > 1 && !request.slicing.sizes.empty()))
    out += fmt::format(" --tokens {}", request.slicing.tokens);
  if (pricing.model) out += fmt::format(" --model {}", shell_word(pricing.model->name));
  if (request.profile)
    out += fmt::format(" --costs {} --redeal", shell_word(pricing.costs_file));
  else if (!same(times, pricing.default_times()))
    out += fmt::format(" --times {},{},{}", times.f, times.i, times.w);
  if (pricing.comm > 0) out += fmt::format(" --comm {}", pricing.comm);
  if (pricing.keep_after_i != 1) out += fmt::format(" --keep-after-i {}", pricing.keep_after_i);
  if (!pricing.contention.empty())
    out += fmt::format(" --contention {}", fmt::join(pricing.contention, ","));
  return out;
}

ComparedRow price_variant(const ComparisonRequest& request, const Variant& variant) {
  const Pricing& pricing = request.pricing;
  const auto divided = [&](double share) {
    return OpTimes{pricing.times.f / share, pricing.times.i / share, pricing.times.w / share};
  };
  GeneratorOptions options;
  options.devices = request.devices;
  options.microbatches = request.microbatches;
  options.slices = variant.slices;
  if (variant.slices > 1) options.slice_sizes = request.slicing.sizes;
  options.comm = pricing.comm;
  options.keep_after_i = pricing.keep_after_i;
  options.stages_per_device = stages_of(request, variant.generator->knobs);
  options.times = divided(options.stages_per_device);
  if (variant.generator->knobs.memory_cap)
    options.memory_cap = variant.cap * options.stages_per_device;
  if (request.profile) options = with_profile(*variant.generator, options, *request.profile);
  Schedule schedule = generate_schedule(*variant.generator, options);
  const Validation validation = validate(schedule);
  if (!validation.valid())
    throw UserError(validation.problems.front().line(), ExitCode::invalid_schedule);
  // Stages per device of a chain: 1 for two pipes that share the devices.
  const double share = static_cast<double>(schedule.num_stages()) / schedule.num_devices();
  Costs costs = request.profile ? with_slices_of(schedule, redeal(*request.profile, schedule))
                                : unit_costs(schedule, divided(share), pricing.comm, 1,
                                             pricing.shares(schedule));
  if (!request.profile) costs.contention = pricing.contention;
  ComparedRow row;
  row.label = label_of(request, variant);
  row.slices = variant.slices;
  row.stages_per_device = options.stages_per_device;
  row.command = command_of(request, variant, options, divided(share));
  row.sim = simulate(schedule, costs, {.keep_after_i = pricing.keep_after_i});
  row.peak = row.sim.max_peak / share;
  return row;
}

// What the rows are relative to: 1F1B, whether it is asked for or not.
const ComparedRow* reference_of(const Comparison& comparison, const ComparisonRequest& request,
                                ComparedRow& other) {
  for (const ComparedRow& row : comparison.rows)
    if (row.label == "1f1b") return &row;
  try {
    other = price_variant(request, {&find_generator("1f1b")});
    return &other;
  } catch (const UserError&) {
    return comparison.rows.empty() ? nullptr : &comparison.rows.front();
  }
}

}  // namespace

Comparison compare_schedules(const ComparisonRequest& request) {
  Comparison out;
  const auto leave_out = [&](const std::string& label, double peak, double cap) {
    out.left_out.emplace_back(label,
                              fmt::format("peak {} is over the cap {}", number(peak), number(cap)));
  };
  for (const Variant& variant : variants(request)) {
    const std::string label = label_of(request, variant);
    try {
      ComparedRow row = price_variant(request, variant);
      if (request.memory_cap > 0 && row.peak > request.memory_cap * (1 + 1e-12))
        leave_out(label, row.peak, request.memory_cap);
      else
        out.rows.push_back(std::move(row));
    } catch (const CapTooLow& error) {
      leave_out(label, error.enough.most() / stages_of(request, variant.generator->knobs),
                variant.cap);
    } catch (const UserError& error) {
      out.left_out.emplace_back(label, error.what());
    }
  }
  compare_windows(request, out);
  if (out.rows.empty() && out.windows.empty()) return out;
  std::stable_sort(
      out.rows.begin(), out.rows.end(), [](const ComparedRow& a, const ComparedRow& b) {
        return std::pair(a.sim.makespan, a.memory()) < std::pair(b.sim.makespan, b.memory());
      });
  ComparedRow other;
  const ComparedRow* const found = reference_of(out, request, other);
  if (!found) return out;
  const ComparedRow& reference = *found;
  out.reference = reference.label;
  const double makespan = reference.sim.makespan, memory = reference.memory();
  double least = 1e300;
  for (ComparedRow& row : out.rows) {
    row.relative_peak = memory > 0 ? row.memory() / memory : 0;
    row.relative_makespan = makespan > 0 ? row.sim.makespan / makespan : 0;
    row.frontier = row.memory() < least * (1 - 1e-12);
    least = std::min(least, row.memory());
  }
  for (ComparedWindow& window : out.windows)
    window.relative_seconds = makespan > 0 ? window.seconds / makespan : 0;
  return out;
}

}  // namespace sluice
