// A planned batch as JSON: milliseconds and MiB, as docs/flexsp.md lists them.
#include <numeric>

#include "sluice/report/batch.h"
#include "sluice/report/json.h"

namespace sluice {
namespace {

constexpr double kMiB = 1 << 20;

Json milliseconds(const std::optional<double>& seconds) {
  return seconds ? Json(1000 * *seconds) : Json();
}

Json json_of(const flexsp::PlannedGroup& group) {
  return {{"degree", group.group.degree},
          {"first_rank", group.group.first_rank},
          {"sequences", group.group.sequences},
          {"tokens", group.tokens},
          {"predicted_ms", milliseconds(group.seconds)},
          {"memory_mib", group.bytes / kMiB}};
}

Json json_of(const BatchReport::Baseline& baseline) {
  return {{"degree", baseline.degree},
          {"fill", baseline.fill},
          {"predicted_ms", milliseconds(baseline.seconds)}};
}

void append_microbatches(std::string& out, const BatchReport& report) {
  const std::size_t count = report.batch ? report.batch->microbatches.size() : 0;
  append_rows(out, count, [&](std::string& row, std::size_t m) {
    const flexsp::PlannedMicrobatch& microbatch = report.batch->microbatches[m];
    Json groups = Json::array();
    for (const flexsp::PlannedGroup& group : microbatch.groups)
      groups.push_back(json_of(group));
    append_json(
        row, Json{{"predicted_ms", milliseconds(microbatch.seconds)},
                  {"bound_ms", m < report.bounds.size() ? milliseconds(report.bounds[m]) : Json()},
                  {"groups", std::move(groups)}});
  });
}

}  // namespace

std::string batch_json(const BatchReport& report) {
  JsonObject out;
  out.add("schema", 1);
  out.add("devices", report.cluster.devices);
  out.add("sequences", report.lengths.size());
  out.add("dropped", report.dropped);
  out.add("tokens", report.tokens);
  out.add("padded_tokens",
          std::accumulate(report.lengths.begin(), report.lengths.end(), std::int64_t{0}));
  out.add("capacity_tokens", report.cluster.capacity_tokens);
  out.add("strategy", report.strategy);
  if (report.tensor_context) {
    out.add("tensor", report.tensor_context->tensor);
    out.add("context", report.tensor_context->context);
  }
  out.add("predicted_ms", milliseconds(report.seconds()));
  out.add("bound_ms", milliseconds(report.bound()));
  out.add("bound_any_cut_ms", milliseconds(report.bound_of_any_cuts));
  out.add("gap", report.gap() ? Json(*report.gap()) : Json());
  out.add("plan_ms", milliseconds(report.plan_seconds));
  out.add("bound_time_ms", milliseconds(report.bounds_seconds));
  out.add("all_to_all_share", report.all_to_all_share());
  append_microbatches(out.begin("microbatches"), report);
  Json excluded = Json::array(), fixed = Json::array();
  for (const flexsp::ExcludedDegree& degree : report.excluded)
    excluded.push_back({{"degree", degree.degree}, {"reason", degree.reason}});
  for (const BatchReport::Baseline& baseline : report.fixed)
    fixed.push_back(json_of(baseline));
  out.add("excluded_degrees", excluded);
  out.add("baselines", {{"fixed", fixed},
                        {"batch_ada", report.batch_ada ? json_of(*report.batch_ada) : Json()}});
  return out.take();
}

std::string degree_table_json(const DegreeTable& table) {
  JsonObject out;
  out.add("schema", 1);
  out.add("devices", table.cluster.devices);
  out.add("capacity_tokens", table.cluster.capacity_tokens);
  out.add("degrees", table.cluster.degrees);
  Json excluded = Json::array();
  for (const flexsp::ExcludedDegree& degree : table.excluded)
    excluded.push_back({{"degree", degree.degree}, {"reason", degree.reason}});
  out.add("excluded_degrees", excluded);
  append_rows(out.begin("lengths"), table.rows.size(), [&](std::string& row, std::size_t n) {
    Json cells = Json::array();
    for (const std::optional<double>& seconds : table.rows[n].seconds)
      cells.push_back(milliseconds(seconds));
    append_json(row, Json{{"tokens", table.rows[n].length}, {"ms", std::move(cells)}});
  });
  return out.take();
}

}  // namespace sluice
