#include "sluice/report/partition.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "sluice/base/text.h"
#include "sluice/plan/balance.h"
#include "sluice/report/dry_run.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using Layers = std::vector<std::int64_t>;
using Outcome = PartitionReport::Outcome;

Outcome outcome_of(const PlannedRun& run, const PartitionQuery& query, const Layers& layers) {
  Outcome out;
  out.layers = layers;
  const PartWork& work = query.work;
  for (const std::int64_t n : layers)
    out.stage_share.push_back(static_cast<double>(n) * work.layer);
  out.stage_share.front() += work.embedding;
  out.stage_share.back() += work.head;
  out.device_share = device_work(query, layers);
  const double all = std::accumulate(out.stage_share.begin(), out.stage_share.end(), 0.0);
  for (auto* shares : {&out.stage_share, &out.device_share})
    for (double& share : *shares)
      share /= all;
  out.bytes = device_bytes(query, layers);
  out.step = step_time(run.plan, run.times, layers);
  return out;
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

std::vector<int> devices_of(const Placement& placement, int stage) {
  std::vector<int> devices;
  for (int pipe = 0; pipe < placement.num_pipes(); ++pipe)
    devices.push_back(placement.device_of(pipe, stage));
  return devices;
}

}  // namespace

PartitionReport partition_report(const PlannedRun& run) {
  const PartitionQuery query = partition_query(run.plan, run.times);
  PartitionReport report{
      .run = run, .best = outcome_of(run, query, best_partition(query)), .even = std::nullopt};
  const int stages = run.plan.schedule.num_stages();
  if (run.plan.shape.layers >= stages)
    report.even = outcome_of(run, query, even_layers(run.plan.shape.layers, stages));
  return report;
}

std::string partition_text(const PartitionReport& report) {
  const auto& [run, best, even] = report;
  const Schedule& schedule = run.plan.schedule;
  const bool measured = run.times.measured;
  TextTable stages({"stage", "device", "layers", "work", "even", "work"});
  TextTable devices({"device", "work", "MiB", "even work", "even MiB"});
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    stages.add({fmt::format("{}", stage),
                fmt::format("{}", fmt::join(devices_of(schedule.placement, stage), ",")),
                fmt::format("{}", best.layers[s]), percent(best.stage_share[s]),
                even ? fmt::format("{}", even->layers[s]) : "-",
                even ? percent(even->stage_share[s]) : "-"});
  }
  for (std::size_t d = 0; d < best.bytes.size(); ++d)
    devices.add({fmt::format("{}", d), percent(best.device_share[d]), mebibytes(best.bytes[d]),
                 even ? percent(even->device_share[d]) : "-",
                 even ? mebibytes(even->bytes[d]) : "-"});
  std::string out = fmt::format(
      "{}: {} on {}, {}; {}\n{}\n{}", schedule.name, counted(run.plan.shape.layers, "layer"),
      counted(schedule.num_devices(), "device"), counted(schedule.window_size(), "microbatch"),
      measured ? "work measured by a profile" : "work counted in FLOPs", stages.text(),
      devices.text());
  if (measured) out += fmt::format("simulated step: {:.4g} s", best.step);
  if (even)
    out += measured ? fmt::format(", with even layers {:.4g} s (ratio {:.3f})", even->step,
                                  best.step / even->step)
                    : fmt::format("simulated step: {:.3f} of the time with even layers",
                                  best.step / even->step);
  if (measured || even) out += "\n";
  return out + fmt::format("parallelism.layers_per_stage = [{}]\n", fmt::join(best.layers, ", "));
}

std::string partition_json(const PartitionReport& report) {
  const auto& [run, best, even] = report;
  const Schedule& schedule = run.plan.schedule;
  const auto fields = [&](const Outcome& outcome) {
    return Json{{"layers", outcome.layers},
                {"stage_work", outcome.stage_share},
                {"device_work", outcome.device_share},
                {"device_bytes", outcome.bytes},
                {"step", outcome.step}};
  };
  Json placement = Json::array();
  for (int stage = 0; stage < schedule.num_stages(); ++stage)
    placement.push_back(devices_of(schedule.placement, stage));
  Json out = {{"schema", 1},
              {"schedule", schedule.name},
              {"devices", schedule.num_devices()},
              {"microbatches", schedule.window_size()},
              {"measured", run.times.measured},
              {"devices_of_stage", placement},
              {"auto", fields(best)},
              {"even", even ? fields(*even) : Json()}};
  return out.dump(2) + "\n";
}

}  // namespace sluice
