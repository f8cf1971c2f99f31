#include "sluice/report/dry_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/cost/parameters.h"
#include "sluice/run/step_kinds.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

struct Class {
  const char* name;
  std::int64_t (*bytes)(const RankMemory&);
};
constexpr Class kClasses[] = {
    {"weights", [](const RankMemory& m) { return m.weights; }},
    {"gradients", [](const RankMemory& m) { return m.gradients; }},
    {"optimizer", [](const RankMemory& m) { return m.optimizer; }},
    {"stash", [](const RankMemory& m) { return m.stash; }},
    {"buffers", [](const RankMemory& m) { return m.buffers; }},
    {"workspace", [](const RankMemory& m) { return m.workspace; }},
    {"reduction", [](const RankMemory& m) { return m.reduction; }},
    {"rollback", [](const RankMemory& m) { return m.rollback; }},
    {"total", [](const RankMemory& m) { return m.total(); }},
};

// The classes that the table shows: all but those that only some runs have and this one has not.
std::vector<Class> shown_classes(const std::vector<RankMemory>& ranks) {
  std::vector<Class> shown;
  for (const Class& c : kClasses) {
    const bool rare =
        std::string_view(c.name) == "reduction" || std::string_view(c.name) == "rollback";
    const bool any = std::any_of(ranks.begin(), ranks.end(),
                                 [&](const RankMemory& rank) { return c.bytes(rank) > 0; });
    if (!rare || any) shown.push_back(c);
  }
  return shown;
}

// The classes of traffic in which any rank sends something.
std::vector<TrafficClass> moving(const std::vector<RankMemory>& ranks) {
  std::vector<TrafficClass> out;
  for (int c = 0; c < kNumTrafficClasses; ++c) {
    const auto kind = static_cast<TrafficClass>(c);
    if (std::any_of(ranks.begin(), ranks.end(),
                    [&](const RankMemory& rank) { return rank.traffic.of(kind) > 0; }))
      out.push_back(kind);
  }
  return out;
}

// The classes in which sharded parameters and sharded states may differ, where there are both:
// gradients that tensor ranks add up (norm) only do where shard ranks divide them.
std::vector<TrafficClass> differing(const std::vector<RankMemory>& ranks) {
  const auto any = [&](const auto& holds) {
    return std::any_of(ranks.begin(), ranks.end(), holds);
  };
  std::vector<TrafficClass> out;
  for (const TrafficClass kind :
       {TrafficClass::gradient, TrafficClass::parameter, TrafficClass::norm})
    if (any([&](const RankMemory& rank) {
          return rank.states_traffic && (kind != TrafficClass::norm ||
                                         rank.states_traffic->of(kind) != rank.traffic.of(kind));
        }))
      out.push_back(kind);
  return out;
}

std::int64_t sum(const std::vector<RankMemory>& ranks, const Class& c) {
  std::int64_t total = 0;
  for (const RankMemory& rank : ranks)
    total += c.bytes(rank) * static_cast<std::int64_t>(rank.ranks.size());
  return total;
}

// " (2 data x 4 pipeline x 2 tensor)"; empty where there is only a pipeline.
std::string mesh_text(const MeshShape& mesh) {
  if (mesh.data() * mesh.tensor == 1) return "";
  return fmt::format(" ({} data x {} pipeline x {} tensor)", mesh.data(), mesh.pipeline,
                     mesh.tensor);
}

// 0-3,8: numbers in ascending order.
std::string number_ranges(const std::vector<int>& numbers) {
  std::string out;
  for (std::size_t i = 0, end = 0; i < numbers.size(); i = end) {
    for (end = i + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;)
      ++end;
    if (!out.empty()) out += ',';
    out += fmt::format("{}", numbers[i]);
    if (end > i + 1) out += fmt::format("-{}", numbers[end - 1]);
  }
  return out;
}

std::string prediction_text(const DryRun& dry) {
  const Prediction& prediction = dry.prediction;
  const RunPlan& plan = dry.run.plan;
  std::string out =
      fmt::format("{}; bubble {:.1f}% of a step, by {}\n",
                  counted(num_parameters(plan.shape), "parameter"), 100 * prediction.bubble,
                  dry.run.times.measured ? "the times of parallelism.costs" : "counting FLOPs");
  if (plan.ragged())
    out += fmt::format(
        "the bubble is that of {} microbatches; how long a step takes depends on the lengths of "
        "its sequences\n",
        plan.config.flexsp.enabled ? fmt::format("{} full", plan.num_microbatches()) : "full");
  if (!prediction.step_s) return out;
  out +=
      fmt::format("{}{:.4g} s per step, {}{} tokens/s", prediction.lower_bound ? "at least " : "",
                  *prediction.step_s, prediction.lower_bound ? "at most " : "",
                  with_commas(fmt::format("{:.0f}", *prediction.tokens_per_s)));
  if (prediction.mfu) out += fmt::format(", MFU {:.1f}%", 100 * *prediction.mfu);
  out += fmt::format(", {:.3g} days for {}", *prediction.days,
                     counted(plan.config.training.steps, "step"));
  if (prediction.lower_bound)
    out += "; bounds by cluster.peak_tflops alone, as if every matmul reached it";
  return out + "\n";
}

// What the elements are of. How many microbatches a step has is not known before it is planned.
std::string sent_in(const RunPlan& plan) {
  if (!plan.config.flexsp.enabled) return plan.ragged() ? " at most" : "";
  return fmt::format(" if it has {} of {}; a planned step may have more or fewer",
                     counted(plan.num_microbatches(), "microbatch"), plan.microbatch_text());
}

Json optional(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

}  // namespace

std::string mebibytes(double bytes) { return fmt::format("{:.2f}", bytes / (1 << 20)); }

std::string dry_run_text(const DryRun& dry) {
  const RunPlan& plan = dry.run.plan;
  const Schedule& schedule = plan.schedule;
  const std::vector<RankMemory>& ranks = dry.ranks;
  const std::vector<Class> classes = shown_classes(ranks);
  std::vector<std::string> header = {"rank", "stages", "layers"};
  for (const Class& c : classes)
    header.emplace_back(c.name);
  TextTable table(header);
  table.left_align(1);
  table.left_align(2);
  for (const RankMemory& rank : ranks) {
    std::vector<std::string> row = {number_ranges(rank.ranks),
                                    fmt::format("{}", fmt::join(rank.stages, ",")),
                                    fmt::format("{}", fmt::join(rank.layers, ","))};
    for (const Class& c : classes)
      row.push_back(mebibytes(static_cast<double>(c.bytes(rank))));
    table.add(row);
  }
  std::vector<std::string> row = {"all", "", ""};
  for (const Class& c : classes)
    row.push_back(mebibytes(static_cast<double>(sum(ranks, c))));
  table.add(row);
  std::string out = fmt::format("{} on {}{}, {}, backend {}; MiB per rank:\n{}", schedule.name,
                                counted(plan.mesh.size(), "rank"), mesh_text(plan.mesh),
                                microbatches_text(plan), plan.config.comm.backend, table.text());
  if (const auto kinds = moving(ranks); !kinds.empty()) {
    std::vector<std::string> names = {"rank"};
    for (const TrafficClass kind : kinds)
      names.emplace_back(traffic_name(kind));
    for (const TrafficClass kind : differing(ranks))
      names.push_back(fmt::format("{} (states)", traffic_name(kind)));
    TextTable moved(names);
    for (const RankMemory& rank : ranks) {
      std::vector<std::string> cells = {number_ranges(rank.ranks)};
      for (const TrafficClass kind : kinds)
        cells.push_back(with_commas(fmt::format("{}", rank.traffic.of(kind))));
      for (const TrafficClass kind : differing(ranks))
        cells.push_back(with_commas(fmt::format("{}", rank.states_traffic->of(kind))));
      moved.add(cells);
    }
    out += fmt::format("elements that a rank sends per step{} (docs/parallelism.md):\n{}",
                       sent_in(plan), moved.text());
  }
  if (plan.sliced())
    out += fmt::format("slices of {} tokens\n", fmt::join(schedule.slice_sizes, ", "));
  out += prediction_text(dry);
  for (const std::string& remark : dry.remarks)
    out += remark + "\n";
  return out;
}

std::string dry_run_json(const DryRun& dry) {
  const RunPlan& plan = dry.run.plan;
  Json rows = Json::array(), totals;
  for (const RankMemory& rank : dry.ranks) {
    Json row = {{"rank", rank.ranks.front()},
                {"ranks", rank.ranks},
                {"stages", rank.stages},
                {"layers", rank.layers}};
    for (const Class& c : kClasses)
      row[c.name] = c.bytes(rank);
    for (int c = 0; c < kNumTrafficClasses; ++c) {
      const auto kind = static_cast<TrafficClass>(c);
      row["traffic"][std::string(traffic_name(kind))] = rank.traffic.of(kind);
      if (rank.states_traffic)
        row["traffic_of_states"][std::string(traffic_name(kind))] = rank.states_traffic->of(kind);
    }
    rows.push_back(row);
  }
  for (const Class& c : kClasses)
    totals[c.name] = sum(dry.ranks, c);
  const Prediction& prediction = dry.prediction;
  const Json out = {{"schedule", plan.schedule.name},
                    {"backend", name_of(plan.config.comm.backend)},
                    {"ranks", rows},
                    {"totals", totals},
                    {"num_microbatches", plan.num_microbatches()},
                    {"num_microbatches_planned", plan.config.flexsp.enabled},
                    {"machine", dry.machine_bytes ? Json(*dry.machine_bytes) : Json()},
                    {"fits", dry.fits ? Json(*dry.fits) : Json()},
                    {"slice_sizes", plan.schedule.slice_sizes},
                    {"parameters", num_parameters(plan.shape)},
                    {"bubble", prediction.bubble},
                    {"step_s", optional(prediction.step_s)},
                    {"tokens_per_s", optional(prediction.tokens_per_s)},
                    {"mfu", optional(prediction.mfu)},
                    {"days", optional(prediction.days)},
                    {"lower_bounds", prediction.step_s ? Json(prediction.lower_bound) : Json()},
                    {"remarks", dry.remarks}};
  return out.dump(2) + "\n";
}

}  // namespace sluice
