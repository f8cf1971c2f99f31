#include "sluice/report/batch.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "sluice/base/text.h"
#include "sluice/report/dry_run.h"

namespace sluice {
namespace {

using flexsp::PlannedGroup;
using flexsp::PlannedMicrobatch;

std::string milliseconds(double seconds) {
  return with_commas(fmt::format("{:.1f}", 1000 * seconds));
}
std::string grouped(std::int64_t value) { return with_commas(fmt::format("{}", value)); }
std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

// Few enough to be shown each.
bool is_small(const BatchReport& report) {
  std::size_t groups = 0;
  for (const PlannedMicrobatch& microbatch : report.batch->microbatches)
    groups += microbatch.groups.size();
  return groups <= 24 && report.lengths.size() <= 32;
}

// Groups of a microbatch that share a row: all of one degree, or one alone.
struct Row {
  int degree = 1, first_rank = 0;
  int groups = 0;
  std::int64_t tokens = 0;
  double seconds = 0, bytes = 0;      // of the slowest, of the largest
  std::vector<std::int64_t> lengths;  // longest first
};

std::vector<Row> rows_of(const BatchReport& report, const PlannedMicrobatch& microbatch,
                         bool each) {
  std::vector<Row> rows;
  for (const PlannedGroup& group : microbatch.groups) {
    if (each || rows.empty() || rows.back().degree != group.group.degree) {
      rows.emplace_back();
      rows.back().degree = group.group.degree;
      rows.back().first_rank = group.group.first_rank;
    }
    Row& row = rows.back();
    ++row.groups;
    row.tokens += group.tokens;
    row.seconds = std::max(row.seconds, group.seconds);
    row.bytes = std::max(row.bytes, group.bytes);
    for (const std::int64_t number : group.group.sequences)
      row.lengths.push_back(report.lengths[static_cast<std::size_t>(number)]);
  }
  for (Row& row : rows)
    std::sort(row.lengths.begin(), row.lengths.end(), std::greater<>());
  return rows;
}

std::string lengths_text(const Row& row, bool each) {
  if (row.lengths.empty()) return "-";
  constexpr std::ptrdiff_t kMost = 8;
  if (each && std::ssize(row.lengths) > kMost)
    return fmt::format("{} and {} more",
                       fmt::join(row.lengths.begin(), row.lengths.begin() + kMost - 1, " "),
                       std::ssize(row.lengths) - kMost + 1);
  if (each) return fmt::format("{}", fmt::join(row.lengths, " "));
  if (row.lengths.front() == row.lengths.back()) return fmt::format("{}", row.lengths.front());
  return fmt::format("{}-{}", row.lengths.back(), row.lengths.front());
}

std::string groups_text(const BatchReport& report) {
  const bool each = is_small(report);
  TextTable table({"microbatch", "ms", "bound", each ? "ranks" : "groups", "sequences", "tokens",
                   "group ms", "MiB", "lengths"});
  table.left_align(8);
  const auto& microbatches = report.batch->microbatches;
  for (std::size_t m = 0; m < microbatches.size(); ++m) {
    bool first = true;
    for (const Row& row : rows_of(report, microbatches[m], each)) {
      std::vector<std::string> cells = {"", "", ""};
      if (first)
        cells = {fmt::format("{}", m), milliseconds(microbatches[m].seconds),
                 m < report.bounds.size() ? milliseconds(report.bounds[m]) : "-"};
      first = false;
      const int last = row.first_rank + row.degree - 1;
      cells.push_back(!each            ? fmt::format("{} of {}", row.groups, row.degree)
                      : row.degree > 1 ? fmt::format("{}-{}", row.first_rank, last)
                                       : fmt::format("{}", row.first_rank));
      cells.insert(
          cells.end(),
          {fmt::format("{}", row.lengths.size()), grouped(row.tokens), milliseconds(row.seconds),
           with_commas(fmt::format("{:.0f}", row.bytes / (1 << 20))), lengths_text(row, each)});
      table.add(std::move(cells));
    }
  }
  return table.text();
}

// A row per degree: milliseconds, and how much longer that is than the plan.
std::string baselines_text(const BatchReport& report) {
  std::vector<double> fills;
  for (const BatchReport::Baseline& fixed : report.fixed)
    if (std::find(fills.begin(), fills.end(), fixed.fill) == fills.end())
      fills.push_back(fixed.fill);
  std::vector<std::string> header = {fmt::format("against {}", report.strategy)};
  for (const double fill : fills)
    header.insert(header.end(), {fmt::format("{:.0f}% full, ms", 100 * fill), "ratio"});
  TextTable table(header);
  std::string small;
  for (const int degree : report.cluster.degrees) {
    std::vector<std::string> row = {fmt::format("fixed:{}", degree)};
    for (const BatchReport::Baseline& fixed : report.fixed)
      if (fixed.degree == degree && fixed.seconds)
        row.insert(row.end(), {milliseconds(*fixed.seconds),
                               fmt::format("{:.2f}", *fixed.seconds / report.seconds())});
    if (row.size() > 1)
      table.add(row);
    else
      small += fmt::format("{}{}", small.empty() ? "" : ", ", row.front());
  }
  if (const auto& ada = report.batch_ada; ada && ada->seconds)
    table.add({fmt::format("batch-ada: {}", ada->degree), milliseconds(*ada->seconds),
               fmt::format("{:.2f}", *ada->seconds / report.seconds())});
  return table.text() + (small.empty() ? "" : small + ": a sequence does not fit\n");
}

}  // namespace

std::optional<double> BatchReport::bound() const {
  if (bounds.empty()) return std::nullopt;
  return std::max(std::accumulate(bounds.begin(), bounds.end(), 0.0), bound_of_any_cuts);
}

std::optional<double> BatchReport::gap() const {
  const std::optional<double> least = bound();
  if (!least || *least <= 0) return std::nullopt;
  return std::max(0.0, seconds() / *least - 1);
}

double BatchReport::all_to_all_share() const {
  if (!batch || batch->seconds <= 0) return 0;
  double seconds = 0;
  for (const PlannedMicrobatch& microbatch : batch->microbatches) {
    const auto slowest = std::max_element(
        microbatch.groups.begin(), microbatch.groups.end(),
        [](const PlannedGroup& a, const PlannedGroup& b) { return a.seconds < b.seconds; });
    if (slowest != microbatch.groups.end()) seconds += slowest->all_to_all_seconds;
  }
  return seconds / batch->seconds;
}

std::string excluded_text(const std::vector<flexsp::ExcludedDegree>& all) {
  std::string out;
  for (const flexsp::ExcludedDegree& excluded : all)
    out += fmt::format("no groups of {}: {}\n", excluded.degree, excluded.reason);
  return out;
}

std::string batch_text(const BatchReport& report) {
  const std::int64_t padded =
      std::accumulate(report.lengths.begin(), report.lengths.end(), std::int64_t{0});
  std::string out = fmt::format("{}: {} from {}, {}, {} with padding;\n{} of {}\n", report.strategy,
                                counted(std::ssize(report.lengths), "sequence"),
                                printable(report.source), counted(report.tokens, "token"),
                                grouped(padded), counted(report.cluster.devices, "device"),
                                counted(report.cluster.capacity_tokens, "token"));
  if (report.dropped > 0)
    out += fmt::format("{} left out: too long\n", counted(report.dropped, "sequence"));
  if (report.truncated > 0)
    out += fmt::format("{} truncated\n", counted(report.truncated, "sequence"));
  out += fmt::format("predicted {} ms", milliseconds(report.seconds()));
  if (const auto bound = report.bound())
    out +=
        fmt::format(", {} above the bound of {} ms; whatever the microbatches, at least {} ms\n",
                    *report.gap() < 5e-4 ? "less than 0.1%" : "at most " + percent(*report.gap()),
                    milliseconds(*bound), milliseconds(report.bound_of_any_cuts));
  else
    out += fmt::format("; whatever the microbatches, sequence parallelism takes at least {} ms\n",
                       milliseconds(report.bound_of_any_cuts));
  if (report.batch) {
    out += fmt::format("{} of the time is all-to-all\n\n{}", percent(report.all_to_all_share()),
                       groups_text(report));
  } else {
    out += fmt::format("tensor parallel degree {}, context parallel degree {}\n",
                       report.tensor_context->tensor, report.tensor_context->context);
  }
  out += "\n" + baselines_text(report);
  return out + excluded_text(report.excluded);
}

// --- By length and degree ----------------------------------------------------------------------

DegreeTable degree_table(const flexsp::Cluster& cluster, std::int64_t longest) {
  DegreeTable table{cluster, {}};
  for (std::int64_t length = std::min<std::int64_t>(1024, longest);;
       length = std::min(2 * length, longest)) {
    auto& row = table.rows.emplace_back();
    row.length = length;
    TokenSums sums;
    sums.add(static_cast<double>(length));
    for (const int degree : cluster.degrees)
      row.seconds.push_back(length <= cluster.capacity_tokens * degree
                                ? std::optional(cluster.costs.seconds(degree, sums))
                                : std::nullopt);
    if (length == longest) return table;
  }
}

std::string degree_table_text(const DegreeTable& table) {
  std::vector<std::string> header = {"tokens"};
  for (const int degree : table.cluster.degrees)
    header.push_back(fmt::format("degree {}", degree));
  TextTable text(header);
  for (const DegreeTable::Row& row : table.rows) {
    std::vector<std::string> cells = {grouped(row.length)};
    for (const std::optional<double>& seconds : row.seconds)
      cells.push_back(seconds ? milliseconds(*seconds) : "OOM");
    text.add(std::move(cells));
  }
  return fmt::format("milliseconds of one sequence alone; OOM: over {} on a device\n\n{}{}",
                     counted(table.cluster.capacity_tokens, "token"), text.text(),
                     excluded_text(table.excluded));
}

}  // namespace sluice
