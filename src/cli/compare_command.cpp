// sluice compare [NAME...]: schedules side by side on the same model.
#include <fmt/ranges.h>

#include <algorithm>

#include "sluice/base/say.h"
#include "sluice/base/text.h"
#include "sluice/cli/commands.h"
#include "sluice/cli/comparison.h"
#include "sluice/cli/output.h"
#include "sluice/trace/render.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::vector<std::string> names;
  ComparisonRequest request;
  OutputFlags output;
};

std::string title(const ComparisonRequest& request) {
  std::string text =
      fmt::format("{} devices, {} microbatches, ", request.devices, request.microbatches);
  const PricingFlags& pricing = request.pricing;
  if (request.profile)
    return text + fmt::format("times and bytes of {}", printable(pricing.costs_file));
  if (pricing.model)
    text +=
        fmt::format("{} on {} tokens, ", printable(pricing.model->name), pricing.sequence_length);
  const auto shown = [&](double time) {
    return pricing.times_given ? number(time) : fmt::format("{:.6g}", time);
  };
  text += fmt::format("F,I,W = {},{},{} per device and microbatch", shown(pricing.times.f),
                      shown(pricing.times.i), shown(pricing.times.w));
  if (pricing.comm > 0) text += fmt::format(", messages {}", number(pricing.comm));
  if (!pricing.contention.empty()) text += ", with contention";
  return text;
}

// 1F1B is written like this in prose.
std::string reference_name(const Comparison& comparison) {
  return comparison.reference == "1f1b" ? "1F1B" : comparison.reference;
}

std::string text(const ComparisonRequest& request, const Comparison& comparison) {
  const bool bytes = comparison.rows.front().sim.max_peak_bytes > 0;
  const std::string of = "of " + reference_name(comparison);
  const auto columns = [&](std::vector<std::string> cells) {
    if (!bytes) cells.erase(cells.begin() + 4);
    return cells;
  };
  TextTable table(columns(
      {"schedule", "makespan", of, "peak", "peak GiB", of, "span", "bubble", "of span", ""}));
  for (const ComparedRow& row : comparison.rows)
    table.add(
        columns({row.label, fmt::format("{:.6g}", row.sim.makespan),
                 fmt::format("{:.3f}", row.relative_makespan), fmt::format("{:.4g}", row.peak),
                 fmt::format("{:.4g}", row.sim.max_peak_bytes / (1 << 30)),
                 fmt::format("{:.3f}", row.relative_peak), fmt::format("{:.6g}", row.sim.span),
                 fmt::format("{:.6g}", row.sim.bubble),
                 fmt::format("{:.2f}%", 100 * row.sim.bubble_rate), row.frontier ? "*" : ""}));
  std::size_t width = 0;
  for (const ComparedRow& row : comparison.rows)
    width = std::max(width, row.label.size());
  std::string out = title(request) + "\n\n" + table.text() +
                    "\nranked by makespan; * no faster schedule here needs as little memory\n"
                    "peak in device-microbatches; span and bubble presume deferred validation, "
                    "which lets steps overlap\n";
  if (!request.slices.sizes.empty())
    out += fmt::format("slices of {}\n", slice_sizes_text(request.slices.sizes));
  out += "\nthe command for each row:\n";
  for (const ComparedRow& row : comparison.rows)
    out += fmt::format("  {:<{}}  {}\n", row.label, width, printable(row.command));
  if (!comparison.left_out.empty()) out += "\nleft out:\n";
  for (const auto& [label, reason] : comparison.left_out)
    out += fmt::format("  {}: {}\n", label, printable(reason));
  return out;
}

std::string json(const ComparisonRequest& request, const Comparison& comparison) {
  const PricingFlags& pricing = request.pricing;
  std::string out =
      fmt::format("{{\n  \"schema\": 1,\n  \"devices\": {},\n  \"microbatches\": {},\n",
                  request.devices, request.microbatches);
  if (request.profile)
    out += fmt::format("  \"costs\": {},\n", json_quote(pricing.costs_file));
  else
    out += fmt::format("  \"times\": [{},{},{}],\n  \"comm\": {},\n", number(pricing.times.f),
                       number(pricing.times.i), number(pricing.times.w), number(pricing.comm));
  if (pricing.model)
    out += fmt::format("  \"model\": {},\n  \"tokens\": {},\n", json_quote(pricing.model->name),
                       pricing.sequence_length);
  if (!request.slices.sizes.empty())
    out += fmt::format("  \"slice_sizes\": [{}],\n", fmt::join(request.slices.sizes, ","));
  if (!pricing.contention.empty())
    out += fmt::format("  \"contention\": [{}],\n", fmt::join(pricing.contention, ","));
  out += fmt::format("  \"reference\": {},\n  \"schedules\": [", json_quote(comparison.reference));
  for (std::size_t n = 0; n < comparison.rows.size(); ++n) {
    const ComparedRow& row = comparison.rows[n];
    const Simulation& sim = row.sim;
    out += fmt::format(
        "{}\n    {{\"name\":{},\"stages_per_device\":{},\"slices\":{},\"command\":{},"
        "\"makespan\":{},\"relative_makespan\":{},\"peak\":{},{}\"relative_peak\":{},\"span\":{},"
        "\"bubble\":{},\"bubble_rate\":{},\"bubble_fraction\":{},\"frontier\":{}}}",
        n ? "," : "", json_quote(row.label), row.stages_per_device, row.slices,
        json_quote(row.command), number(sim.makespan), number(row.relative_makespan),
        number(row.peak),
        sim.max_peak_bytes > 0 ? fmt::format("\"peak_bytes\":{},", number(sim.max_peak_bytes)) : "",
        number(row.relative_peak), number(sim.span), number(sim.bubble), number(sim.bubble_rate),
        number(sim.bubble_fraction), row.frontier);
  }
  out += "\n  ],\n  \"left_out\": [";
  for (std::size_t n = 0; n < comparison.left_out.size(); ++n)
    out += fmt::format("{}\n    {{\"name\":{},\"reason\":{}}}", n ? "," : "",
                       json_quote(comparison.left_out[n].first),
                       json_quote(comparison.left_out[n].second));
  return out + "\n  ]\n}\n";
}

void read_profile(ComparisonRequest& request) {
  if (request.pricing.costs_file.empty()) return;
  request.profile =
      parse_file(request.pricing.costs_file, kMaxCostsBytes, [&](const std::string& text) {
        Costs costs = stage_costs_from_json(text);
        check_measured_length(costs, request.slices.stated_tokens());
        return costs;
      });
}

// Slices that are not given: four, balanced where there is a model; or those of the profile.
void cut(ComparisonRequest& request) {
  SliceFlags& slices = request.slices;
  slices.take_tokens(request.pricing);
  if (!slices.given())
    slices.slices = request.profile && request.profile->num_slices() > 1
                        ? request.profile->num_slices()
                        : std::min(4, slices.tokens);
  const std::optional<NamedModel>& model = request.pricing.model;
  if (model && !model->shape.encoder() && !slices.sizes_given())
    slices.balanced = slices.slices > 1;
  slices.check();
  slices.balance(request.pricing);
  request.pricing.count_model(slices.tokens);
}

void run(Flags& flags) {
  ComparisonRequest& request = flags.request;
  for (const auto& [flag, value] :
       {std::pair{"--devices", request.devices}, std::pair{"--microbatches", request.microbatches}})
    if (value == 0)
      throw user_error("{} is missing: sluice compare --devices 8 --microbatches 16", flag);
  for (const std::string& name : flags.names) {
    const Generator& generator = find_generator(name);
    if (generator.knobs.block)
      throw user_error("'{}' cannot be compared: it has no schedule of its own", name);
    const auto& found = request.generators;
    if (std::find(found.begin(), found.end(), &generator) == found.end())
      request.generators.push_back(&generator);
  }
  const Format format = flags.output.format("text,svg,json");
  request.pricing.check();
  if (!request.pricing.contention.empty())
    check_contention(request.pricing.contention, request.devices, "--contention");
  read_profile(request);
  cut(request);
  const Comparison comparison = compare(request);
  if (comparison.rows.empty()) {
    // The first asks least of all.
    const auto& [label, reason] = comparison.left_out.front();
    throw user_error("nothing to compare: {}: {}", label, reason);
  }
  if (format == Format::json) {
    flags.output.write(json(request, comparison));
  } else if (format == Format::text) {
    flags.output.write(text(request, comparison));
  } else {
    std::vector<ComparisonPoint> points;
    for (const ComparedRow& row : comparison.rows)
      points.push_back({row.label, row.relative_makespan, row.relative_peak});
    flags.output.write(render_comparison_svg(title(request), comparison.reference, points));
  }
  if (request.profile)
    say("sluice: {}\n", measured_on_note(request.pricing.costs_file, *request.profile));
}

}  // namespace

void add_compare(CLI::App& app, ExitCode&) {
  auto flags = std::make_shared<Flags>();
  ComparisonRequest& request = flags->request;
  CLI::App* command = app.add_subcommand("compare", "schedules side by side on the same model");
  command->add_option("names", flags->names, "schedules to compare (default: all)")
      ->type_name("NAME");
  add_size(*command, request.devices, 1 << 16, request.microbatches, 1 << 20);
  add_int(*command, "--stages-per-device", request.stages_per_device, 1, 1024,
          "stages per device of the interleaved schedules (default 2)");
  // Before its first backward a device has seen the whole of a microbatch: nothing needs less.
  add_number(*command, "--device-memory-cap,--memory-cap", request.memory_cap, 1, 1e9,
             "leave out what needs more, in microbatches of a whole device; zb and adaptive-v "
             "search under it");
  request.slices.add(*command, "cut sequences into N slices where a schedule can (default 4)");
  request.pricing.times_flag = "--device-times";
  request.pricing.add(*command,
                      "times of a device's F,I,W on a whole microbatch (default 1,1,1; B = I + W)");
  flags->output.add(*command, "text (default), svg, json");
  command->callback([flags] { run(*flags); });
}

}  // namespace sluice::cli
