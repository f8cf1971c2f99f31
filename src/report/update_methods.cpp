#include "sluice/report/update_methods.h"

#include <nlohmann/json.hpp>

#include "sluice/base/text.h"
#include "sluice/report/dry_run.h"

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
    {"total", [](const RankMemory& m) { return m.total(); }},
};

}  // namespace

std::string update_methods_text(const RunPlan& plan, const std::vector<UpdateMethod>& methods) {
  std::vector<std::string> header = {"method"};
  for (const Class& c : kClasses)
    header.emplace_back(c.name);
  for (const char* name : {"step", "mismatch", "delay"})
    header.emplace_back(name);
  TextTable table(header);
  std::string left_out, commands;
  std::size_t width = 0;
  for (const UpdateMethod& method : methods)
    width = std::max(width, method.name.size());
  for (const UpdateMethod& method : methods) {
    if (!method.largest) {
      left_out += fmt::format("  {}: {}\n", method.name, method.why_not);
      continue;
    }
    std::vector<std::string> row = {method.name};
    for (const Class& c : kClasses)
      row.push_back(mebibytes(static_cast<double>(c.bytes(*method.largest))));
    row.push_back(fmt::format("{:.3f}", method.relative_step));
    row.push_back(fmt::format("{}", method.max_mismatch));
    row.push_back(fmt::format("{}", method.max_delay));
    table.add(row);
    std::string flags;
    for (const std::string_view setting : split(method.settings, ' '))
      flags += fmt::format(" --{}", setting);
    commands += fmt::format("  {:<{}} {}\n", method.name, width, flags);
  }
  std::string out = fmt::format(
      "{} by each method of updating, {} of {} per step; MiB of the rank that needs most:\n{}"
      "\nstep: its time relative to that of 1f1b, without messages and updates; total also counts "
      "buffers and workspace\n\nthe flags of each row:\n{}",
      counted(plan.mesh.size(), "rank"), counted(plan.num_microbatches(), "microbatch"),
      plan.microbatch_text(), table.text(), commands);
  if (!left_out.empty()) out += "\nleft out:\n" + left_out;
  return out;
}

std::string update_methods_json(const std::vector<UpdateMethod>& methods) {
  Json rows = Json::array(), left_out = Json::array();
  for (const UpdateMethod& method : methods) {
    if (!method.largest) {
      left_out.push_back({{"name", method.name}, {"reason", method.why_not}});
      continue;
    }
    Json row = {{"name", method.name}, {"settings", split(method.settings, ' ')}};
    for (const Class& c : kClasses)
      row[c.name] = c.bytes(*method.largest);
    row["relative_step"] = method.relative_step;
    row["max_mismatch"] = method.max_mismatch;
    row["max_delay"] = method.max_delay;
    rows.push_back(row);
  }
  const Json out = {{"schema", 1}, {"methods", rows}, {"left_out", left_out}};
  return out.dump(2) + "\n";
}

}  // namespace sluice
