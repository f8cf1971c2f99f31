// sluice compare: every schedule on the same model, side by side.
//
// The model is held fixed: --times are per device and microbatch, so a stage of a device that holds
// two takes half of them, and peaks count device-microbatches.
#include <algorithm>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "trace/render.h"

namespace sluice::cli {
namespace {

struct Flags {
  int devices = 0;
  int microbatches = 0;
  int stages_per_device = 2;
  double memory_cap = 0;  // device-microbatches; 0: none
  SliceFlags slices;
  PricingFlags pricing;
  OutputFlags output;
};

struct Row {
  std::string label;
  std::string command;  // gives this schedule and these times
  int slices = 1;
  int stages_per_device = 1;
  Simulation sim;
  double peak = 0;      // device-microbatches
  double relative = 0;  // of 1F1B's peak
  bool frontier = false;
};

struct Comparison {
  std::vector<Row> rows;
  std::vector<std::pair<std::string, std::string>> left_out;  // label, reason
};

struct Variant {
  const Generator* generator;
  int slices = 1;
  double cap = 0;  // device-microbatches; 0: none
};

// Each schedule once; sliced ones with the asked number of slices, and without where that is a
// schedule of its own; capped ones at the cap, or at a few caps.
std::vector<Variant> variants(const Flags& flags) {
  const int p = flags.devices;
  std::vector<Variant> out;
  for (const Generator* generator : all_generators()) {
    const Knobs& knobs = generator->knobs;
    if (knobs.block) continue;
    if (knobs.memory_cap) {
      std::vector<double> caps = {0.5 * p, 0.75 * p, 1.0 * p};
      // A V has no use for more than 1F1B's memory; one stage per device has.
      if (knobs.default_stages_per_device == 1) caps.push_back(1.5 * p);
      if (flags.memory_cap > 0) caps = {flags.memory_cap};
      for (const double cap : caps)
        out.push_back({generator, 1, cap});
    } else if (knobs.slices) {
      // Unsliced, the Seq1F1B family is 1F1B, interleaved 1F1B and ZB-H1's like.
      if (!generator->name.starts_with("seq")) out.push_back({generator});
      if (flags.slices.slices > 1) out.push_back({generator, flags.slices.slices});
    } else {
      out.push_back({generator});
    }
  }
  return out;
}

// Stages per device of a chain: 1 for two pipes that share the devices.
double stages_per_device(const Schedule& schedule) {
  return static_cast<double>(schedule.num_stages()) / schedule.num_devices();
}

// Digits that read back as the same number.
std::string exact(double value) { return fmt::format("{}", value); }

int stages_of(const Flags& flags, const Knobs& knobs) {
  return knobs.stages_per_device ? flags.stages_per_device : knobs.default_stages_per_device;
}

Row price_variant(const Flags& flags, const Variant& variant) {
  const Knobs& knobs = variant.generator->knobs;
  GeneratorOptions options;
  options.devices = flags.devices;
  options.microbatches = flags.microbatches;
  options.slices = variant.slices;
  options.comm = flags.pricing.comm;
  options.keep_after_i = flags.pricing.keep_after_i;
  options.stages_per_device = stages_of(flags, knobs);
  const double v = options.stages_per_device;
  options.times = {flags.pricing.times.f / v, flags.pricing.times.i / v, flags.pricing.times.w / v};
  Row row;
  row.label = variant.generator->name;
  row.slices = variant.slices;
  row.stages_per_device = options.stages_per_device;
  row.command = fmt::format("sluice schedule {} --devices {} --microbatches {}",
                            variant.generator->name, flags.devices, flags.microbatches);
  if (knobs.stages_per_device) {
    if (options.stages_per_device != knobs.default_stages_per_device)
      row.label += fmt::format(" v={}", options.stages_per_device);
    row.command += fmt::format(" --stages-per-device {}", options.stages_per_device);
  }
  if (variant.slices > 1) {
    row.label += fmt::format(" k={}", variant.slices);
    row.command += fmt::format(" --slices {}", variant.slices);
    if (!flags.slices.sizes.empty())
      row.command += fmt::format(" --tokens {} --slice-sizes {}", flags.slices.tokens,
                                 fmt::join(flags.slices.sizes, ","));
  }
  if (knobs.memory_cap) {
    options.memory_cap = variant.cap * v;
    row.label += fmt::format(" cap={}", number(variant.cap));
    row.command += fmt::format(" --memory-cap {}", number(*options.memory_cap));
  }
  Schedule schedule = generate_schedule(*variant.generator, options);
  if (variant.slices > 1) schedule.slice_sizes = flags.slices.sizes;
  const Validation validation = validate(schedule);
  if (!validation.valid())
    throw UserError(validation.problems.front().line(), ExitCode::invalid_schedule);
  const double share = stages_per_device(schedule);
  const OpTimes times = {flags.pricing.times.f / share, flags.pricing.times.i / share,
                         flags.pricing.times.w / share};
  row.command +=
      fmt::format(" --times {},{},{} --comm {} --keep-after-i {}", exact(times.f), exact(times.i),
                  exact(times.w), exact(flags.pricing.comm), exact(flags.pricing.keep_after_i));
  Costs costs = unit_costs(schedule, times, flags.pricing.comm, 1);
  costs.contention = flags.pricing.contention;
  if (!costs.contention.empty())
    row.command += fmt::format(" --contention {}", fmt::join(costs.contention, ","));
  row.sim = simulate(schedule, costs, {.keep_after_i = flags.pricing.keep_after_i});
  row.peak = row.sim.max_peak / share;
  return row;
}

Comparison compare(const Flags& flags) {
  Comparison out;
  const auto leave_out = [&](const std::string& label, double peak, double cap) {
    out.left_out.emplace_back(label,
                              fmt::format("peak {} is over the cap {}", number(peak), number(cap)));
  };
  double reference = 0;
  for (const Variant& variant : variants(flags)) {
    std::string label(variant.generator->name);
    if (variant.slices > 1) label += fmt::format(" k={}", variant.slices);
    if (variant.cap > 0) label += fmt::format(" cap={}", number(variant.cap));
    try {
      Row row = price_variant(flags, variant);
      if (variant.generator->name == "1f1b") reference = row.peak;
      if (flags.memory_cap > 0 && row.peak > flags.memory_cap * (1 + 1e-12))
        leave_out(row.label, row.peak, flags.memory_cap);
      else
        out.rows.push_back(std::move(row));
    } catch (const CapTooLow& error) {
      leave_out(label, error.enough / stages_of(flags, variant.generator->knobs), variant.cap);
    } catch (const UserError& error) {
      out.left_out.emplace_back(label, error.what());
    }
  }
  std::stable_sort(out.rows.begin(), out.rows.end(), [](const Row& a, const Row& b) {
    return std::pair(a.sim.span, a.peak) < std::pair(b.sim.span, b.peak);
  });
  double least = 1e300;
  for (Row& row : out.rows) {
    row.relative = reference > 0 ? row.peak / reference : 0;
    row.frontier = row.peak < least * (1 - 1e-12);  // no faster row needs as little
    least = std::min(least, row.peak);
  }
  return out;
}

std::string title(const Flags& flags) {
  std::string text =
      fmt::format("{} devices, {} microbatches, F,I,W = {},{},{} per device and microbatch",
                  flags.devices, flags.microbatches, number(flags.pricing.times.f),
                  number(flags.pricing.times.i), number(flags.pricing.times.w));
  if (flags.pricing.comm > 0) text += fmt::format(", messages {}", number(flags.pricing.comm));
  if (!flags.pricing.contention.empty()) text += ", with contention";
  return text;
}

std::string text(const Flags& flags, const Comparison& comparison) {
  TextTable table({"schedule", "bubble", "of span", "peak", "of 1F1B", "span", "makespan", ""});
  for (const Row& row : comparison.rows)
    table.add({row.label, fmt::format("{:.6g}", row.sim.bubble),
               fmt::format("{:.2f}%", 100 * row.sim.bubble_rate), fmt::format("{:.4g}", row.peak),
               fmt::format("{:.3f}", row.relative), fmt::format("{:.6g}", row.sim.span),
               fmt::format("{:.6g}", row.sim.makespan), row.frontier ? "*" : ""});
  std::string out = title(flags) + "\n\n" + table.text() +
                    "\npeak in device-microbatches; * no faster schedule here needs as little "
                    "memory\n";
  if (!comparison.left_out.empty()) out += "\nleft out:\n";
  for (const auto& [label, reason] : comparison.left_out)
    out += fmt::format("  {}: {}\n", label, reason);
  return out;
}

std::string json(const Flags& flags, const Comparison& comparison) {
  const std::vector<double>& contention = flags.pricing.contention;
  std::string out = fmt::format(
      "{{\n  \"schema\": 1,\n  \"devices\": {},\n  \"microbatches\": {},\n  \"times\": "
      "[{},{},{}],\n  \"comm\": {},\n{}  \"schedules\": [",
      flags.devices, flags.microbatches, number(flags.pricing.times.f),
      number(flags.pricing.times.i), number(flags.pricing.times.w), number(flags.pricing.comm),
      contention.empty() ? ""
                         : fmt::format("  \"contention\": [{}],\n", fmt::join(contention, ",")));
  for (std::size_t n = 0; n < comparison.rows.size(); ++n) {
    const Row& row = comparison.rows[n];
    out += fmt::format(
        "{}\n    "
        "{{\"name\":{},\"stages_per_device\":{},\"slices\":{},\"command\":{},\"bubble\":{},"
        "\"bubble_rate\":{},\"bubble_fraction\":{},"
        "\"peak\":{},\"relative_peak\":{},\"span\":{},\"makespan\":{},\"frontier\":{}}}",
        n ? "," : "", json_quote(row.label), row.stages_per_device, row.slices,
        json_quote(row.command), number(row.sim.bubble), number(row.sim.bubble_rate),
        number(row.sim.bubble_fraction), number(row.peak), number(row.relative),
        number(row.sim.span), number(row.sim.makespan), row.frontier);
  }
  out += "\n  ],\n  \"left_out\": [";
  for (std::size_t n = 0; n < comparison.left_out.size(); ++n)
    out += fmt::format("{}\n    {{\"name\":{},\"reason\":{}}}", n ? "," : "",
                       json_quote(comparison.left_out[n].first),
                       json_quote(comparison.left_out[n].second));
  return out + "\n  ]\n}\n";
}

void run(Flags& flags) {
  for (const auto& [flag, value] :
       {std::pair{"--devices", flags.devices}, std::pair{"--microbatches", flags.microbatches}})
    if (value == 0)
      throw user_error("{} is missing: sluice compare --devices 8 --microbatches 16", flag);
  const Format format = flags.output.format("text,svg,json");
  flags.slices.check();
  if (!flags.pricing.contention.empty())
    check_contention(flags.pricing.contention, flags.devices, "--contention");
  if (!flags.slices.given()) flags.slices.slices = std::min(4, flags.slices.tokens);
  const Comparison comparison = compare(flags);
  if (comparison.rows.empty()) {
    // The first asks least of all.
    const auto& [label, reason] = comparison.left_out.front();
    throw user_error("nothing to compare: {}: {}", label, reason);
  }
  if (format == Format::json) return flags.output.write(json(flags, comparison));
  if (format == Format::text) return flags.output.write(text(flags, comparison));
  std::vector<ComparisonPoint> points;
  for (const Row& row : comparison.rows)
    points.push_back({row.label, row.sim.bubble_rate, row.relative});
  flags.output.write(render_comparison_svg(title(flags), points));
}

}  // namespace

void add_compare(CLI::App& app, ExitCode&) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("compare", "all schedules side by side on the same model");
  add_int(*command, "--devices", flags->devices, 1, 1 << 16, "devices of the pipeline, p");
  add_int(*command, "--microbatches", flags->microbatches, 1, 1 << 20, "microbatches, m");
  add_int(*command, "--stages-per-device", flags->stages_per_device, 1, 1024,
          "stages per device of the interleaved schedules (default 2)");
  // Before its first backward a device has seen the whole of a microbatch: nothing needs less.
  add_number(
      *command, "--memory-cap", flags->memory_cap, 1, 1e9,
      "leave out what needs more, in device-microbatches; zb and adaptive-v search under it");
  flags->slices.add(*command, "cut sequences into N slices where a schedule can (default 4)");
  flags->pricing.add(*command, false,
                     "times of a device's F,I,W on a whole microbatch (default 1,1,1; B = I + W)");
  flags->output.add(*command, "text (default), svg, json");
  command->callback([flags] { run(*flags); });
}

}  // namespace sluice::cli
