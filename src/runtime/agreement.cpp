#include "sluice/runtime/agreement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <span>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/config/schema.h"
#include "sluice/run/batch_planner.h"
#include "sluice/schedule/text_format.h"

namespace sluice {
namespace {

// Files and folders may lie elsewhere on each machine; what is read from them is compared itself.
// The bar is of the terminal.
constexpr std::array kMayDiffer = {
    "data.path",         "data.tokenizer",   "parallelism.pipeline_parallel_schedule_csv",
    "parallelism.costs", "flexsp.plan_file", "checkpoint.folder",
    "checkpoint.load",   "metrics.folder",   "metrics.progress"};

std::string shared_value(const ConfigKey& key, const Config& config) {
  const ConfigValue value = key.get(config);
  if (std::find(kMayDiffer.begin(), kMayDiffer.end(), key.full_name()) == kMayDiffer.end())
    return toml_value(value);
  const std::string* const path = std::get_if<std::string>(&value);
  if (!path) return "";
  const bool word = path->empty() || *path == "latest" || *path == "none";
  return word ? toml_quote(*path) : "a path";
}

std::string nameless_text(Schedule schedule) {
  schedule.name.clear();  // it may be a path
  return write_schedule(schedule, TextFlavour::native);
}

std::string program_identity() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  return fmt::format("{:016x} ({})", hash_of(bytes), counted(std::ssize(bytes), "byte"));
}

std::string threads_asked_for() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return text && *text ? text : "not set";
}

std::string packed(const std::vector<Fact>& facts) {
  std::string text;
  for (const Fact& fact : facts)
    for (const std::string& part : {fact.name, fact.value})
      text += part + '\n';
  return text;
}

std::vector<Fact> unpacked(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<Fact> facts;
  const auto lines = split(text, '\n');
  for (std::size_t n = 0; n + 1 < lines.size(); n += 2)
    facts.push_back({std::string(lines[n]), std::string(lines[n + 1])});
  return facts;
}

std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  if (ranks.size() <= 4) return fmt::format("ranks {}", fmt::join(ranks, ", "));
  return counted(std::ssize(ranks), "rank");
}

// "optimizer.lr is 0.005 on rank 0 and 0.01 on rank 1; ...", or "".
std::string differences(const std::vector<std::vector<Fact>>& ranks) {
  constexpr std::size_t kMostShown = 4;
  struct Values {
    std::vector<std::string> in_order;  // as ranks bring them
    std::map<std::string, std::vector<int>> ranks;
  };
  std::vector<std::string> names;
  std::map<std::string, Values> facts;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    for (const Fact& fact : ranks[rank]) {
      Values& values = facts[fact.name];
      if (values.ranks.empty()) names.push_back(fact.name);
      std::vector<int>& holders = values.ranks[fact.value];
      if (holders.empty()) values.in_order.push_back(fact.value);
      holders.push_back(static_cast<int>(rank));
    }
  std::vector<std::string> lines;
  std::size_t num_differ = 0;
  for (const std::string& name : names) {
    const Values& values = facts.at(name);
    std::size_t num_ranks = 0;
    std::vector<std::string> parts;
    for (const std::string& value : values.in_order) {
      num_ranks += values.ranks.at(value).size();
      parts.push_back(fmt::format("{} on {}", value, ranks_text(values.ranks.at(value))));
    }
    if (parts.size() == 1 && num_ranks == ranks.size()) continue;
    if (num_ranks < ranks.size()) parts.push_back("unknown to the others");
    if (++num_differ <= kMostShown)
      lines.push_back(fmt::format("{} is {}", name, join(parts, " and ")));
  }
  if (num_differ > kMostShown) lines.push_back(fmt::format("and {} more", num_differ - kMostShown));
  return join(lines, "; ");
}

}  // namespace

std::vector<Fact> shared_facts(const RunPlan& plan, const Dataset* data) {
  std::vector<Fact> facts;
  for (const ConfigKey& key : config_schema())
    facts.push_back({key.full_name(), shared_value(key, plan.config)});
  const auto digest = [](const std::string& text) { return fmt::format("{:016x}", hash_of(text)); };
  facts.push_back({"the schedule's digest", digest(nameless_text(plan.schedule))});
  if (plan.batch_plans) {
    std::string lines, schedules;
    for (const auto& [step, batch] : plan.batch_plans->steps)
      lines += batch_plan_line(step, batch) + '\n';
    for (const auto& [count, schedule] : plan.batch_plans->schedules)
      schedules += nameless_text(schedule);
    facts.push_back({"the batch plans' digest", digest(lines)});
    facts.push_back({"the batch plans' schedules", digest(schedules)});
  }
  if (plan.planner) facts.push_back({"what the batch planner goes by", plan.planner->identity});
  if (data) facts.push_back({"the data", data->identity()});
  facts.push_back({"the program", program_identity()});
  facts.push_back({"OMP_NUM_THREADS", threads_asked_for()});
  return facts;
}

void check_same_settings(Communicator& world, const std::vector<Fact>& mine) {
  const std::string text = packed(mine);
  std::vector<std::vector<Fact>> ranks;
  for (const auto& bytes : world.gather(0, std::as_bytes(std::span(text)), "settings"))
    ranks.push_back(unpacked(bytes));
  std::string found = differences(ranks);
  std::uint64_t size = found.size();
  world.broadcast(0, std::as_writable_bytes(std::span(&size, 1)), "settings");
  found.resize(size);
  if (size == 0) return;
  world.broadcast(0, std::as_writable_bytes(std::span(found)), "settings");
  throw user_error(
      "the ranks were started with different settings: {}; start all with the same "
      "(paths may differ)",
      found);
}

}  // namespace sluice
