#include <fmt/ranges.h>

#include <algorithm>

#include "sluice/base/text.h"
#include "sluice/report/comparison.h"
#include "sluice/report/json.h"
#include "sluice/trace/render.h"

namespace sluice {
namespace {

std::string title(const ComparisonRequest& request) {
  std::string text =
      fmt::format("{} devices, {} microbatches, ", request.devices, request.microbatches);
  const Pricing& pricing = request.pricing;
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

Json row_json(const ComparedRow& row) {
  const Simulation& sim = row.sim;
  Json out = {{"name", row.label},        {"stages_per_device", row.stages_per_device},
              {"slices", row.slices},     {"command", row.command},
              {"makespan", sim.makespan}, {"relative_makespan", row.relative_makespan},
              {"peak", row.peak}};
  if (sim.max_peak_bytes > 0) out["peak_bytes"] = sim.max_peak_bytes;
  out.update({{"relative_peak", row.relative_peak},
              {"span", sim.span},
              {"bubble", sim.bubble},
              {"bubble_rate", sim.bubble_rate},
              {"bubble_fraction", sim.bubble_fraction},
              {"frontier", row.frontier}});
  return out;
}

// The table of schedules that end each step before the next begins.
std::string rows_text(const Comparison& comparison) {
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
  return table.text();
}

std::string windows_text(const Comparison& comparison) {
  const std::string of =
      comparison.reference.empty() ? "" : "of a step of " + reference_name(comparison);
  TextTable table(
      {"schedule", "window", of, "at work", "peak", "copies", "mismatch", "of pairs", "delay"});
  for (const ComparedWindow& row : comparison.windows)
    table.add({row.label, fmt::format("{:.6g}", row.seconds),
               of.empty() ? "" : fmt::format("{:.3f}", row.relative_seconds),
               fmt::format("{:.1f}%", 100 * row.at_work), fmt::format("{:.4g}", row.peak),
               fmt::format("{}", row.weight_copies), fmt::format("{}", row.max_mismatch),
               fmt::format("{:.1f}%", 100 * row.mismatch_share),
               fmt::format("{}{}", row.max_delay, row.steady ? "" : " +")});
  std::string out = table.text();
  for (const ComparedWindow& row : comparison.windows)
    if (!row.steady)
      out += fmt::format(
          "+ {} is not steady within {} windows: its time is their mean, and later windows may "
          "have more mismatch and delay\n",
          row.label, row.windows);
  return out;
}

Json window_json(const ComparedWindow& row) {
  const auto steady = [&](const auto& value) { return row.steady ? Json(value) : Json(); };
  return {{"name", row.label},
          {"command", row.command},
          {"windows", row.windows},
          {"window", row.seconds},
          {"relative_window", row.relative_seconds},
          {"steady_utilisation", steady(row.at_work)},
          {"peak", row.peak},
          {"weight_copies", row.weight_copies},
          {"max_mismatch", steady(row.max_mismatch)},
          {"mismatch_share", steady(row.mismatch_share)},
          {"max_delay", steady(row.max_delay)}};
}

}  // namespace

std::string comparison_text(const ComparisonRequest& request, const Comparison& comparison) {
  std::string out = title(request) + "\n";
  if (!comparison.rows.empty())
    out += "\n" + rows_text(comparison) +
           "\nranked by makespan; * no faster schedule here needs as little memory\n"
           "peak in device-microbatches; span and bubble presume deferred validation, "
           "which lets steps overlap\n";
  if (!comparison.windows.empty())
    out += fmt::format(
               "\nschedules that go on from one update of the weights to the next, by the time of "
               "{}:\n\n",
               counted(request.microbatches, "microbatch")) +
           windows_text(comparison) +
           "\npeak in device-microbatches; copies: weights of a device, in 1/p of the model; "
           "docs/asynchronous.md\n";
  if (!request.slicing.sizes.empty())
    out += fmt::format("slices of {}\n", slice_sizes_text(request.slicing.sizes));
  std::vector<std::pair<std::string, std::string>> commands;
  for (const ComparedRow& row : comparison.rows)
    commands.emplace_back(row.label, row.command);
  for (const ComparedWindow& window : comparison.windows)
    commands.emplace_back(window.label, window.command);
  std::size_t width = 0;
  for (const auto& [label, command] : commands)
    width = std::max(width, label.size());
  out += "\nthe command for each row:\n";
  for (const auto& [label, command] : commands)
    out += fmt::format("  {:<{}}  {}\n", label, width, printable(command));
  if (!comparison.left_out.empty()) out += "\nleft out:\n";
  for (const auto& [label, reason] : comparison.left_out)
    out += fmt::format("  {}: {}\n", label, printable(reason));
  return out;
}

std::string comparison_json(const ComparisonRequest& request, const Comparison& comparison) {
  const Pricing& pricing = request.pricing;
  JsonObject object;
  object.add("schema", 1);
  object.add("devices", request.devices);
  object.add("microbatches", request.microbatches);
  if (request.profile) {
    object.add("costs", pricing.costs_file);
  } else {
    object.add("times", Json::array({pricing.times.f, pricing.times.i, pricing.times.w}));
    object.add("comm", pricing.comm);
  }
  if (pricing.model) {
    object.add("model", pricing.model->name);
    object.add("tokens", pricing.sequence_length);
  }
  if (!request.slicing.sizes.empty()) object.add("slice_sizes", request.slicing.sizes);
  // With all digits, unlike other numbers.
  if (!pricing.contention.empty())
    object.begin("contention") += fmt::format("[{}]", fmt::join(pricing.contention, ","));
  object.add("reference", comparison.reference);
  append_rows(
      object.begin("schedules"), comparison.rows.size(),
      [&](std::string& out, std::size_t n) { append_json(out, row_json(comparison.rows[n])); });
  append_rows(object.begin("asynchronous"), comparison.windows.size(),
              [&](std::string& out, std::size_t n) {
                append_json(out, window_json(comparison.windows[n]));
              });
  append_rows(object.begin("left_out"), comparison.left_out.size(),
              [&](std::string& out, std::size_t n) {
                const auto& [label, reason] = comparison.left_out[n];
                append_json(out, {{"name", label}, {"reason", reason}});
              });
  return object.take();
}

std::string comparison_svg(const ComparisonRequest& request, const Comparison& comparison) {
  std::vector<ComparisonPoint> points;
  for (const ComparedRow& row : comparison.rows)
    points.push_back({row.label, row.relative_makespan, row.relative_peak});
  return render_comparison_svg(title(request), comparison.reference, points);
}

}  // namespace sluice
