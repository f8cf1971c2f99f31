#include "sluice/plan/flexsp/run_cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/config/batch_strategy.h"
#include "sluice/plan/run_memory.h"
#include "sluice/plan/searched_schedule.h"
#include "sluice/run/step_traffic.h"

namespace sluice::flexsp {
namespace {

// What each device takes while its ranks have so much of every microbatch.
std::vector<std::int64_t> bytes_of(const RunPlan& plan, const TokenShare& share) {
  RunPlan with = plan;
  with.most_planned = share;
  with.peak_stash_bytes = predicted_peaks(with);
  std::vector<std::int64_t> bytes;
  for (const RankMemory& rank : memory_by_rank(with))
    bytes.push_back(rank.total());
  return bytes;
}

// The cap of a device in bytes; infinite: none.
double cap_of(const RunPlan& plan, std::size_t device) {
  const std::vector<double>& caps = plan.config.parallelism.device_memory_mib;
  const double cap = caps.empty() ? 0 : caps[caps.size() == 1 ? 0 : device] * (1 << 20);
  return cap > 0 ? cap : std::numeric_limits<double>::infinity();
}

// Tokens of a rank in a full microbatch, as it would be dealt.
std::int64_t dealt_tokens(const RunPlan& plan) {
  return padded_to(plan.sequences() * plan.config.training.sequence_length, plan.mesh.tensor);
}

// The most tokens that keep every device within its cap; a multiple of the tensor ranks.
std::int64_t capacity_of(const RunPlan& plan, int degree) {
  const auto capped = [&](std::size_t d) { return cap_of(plan, d) < 1e300; };
  const std::vector<std::int64_t> least = bytes_of(plan, {0, degree});
  bool any = false;
  for (std::size_t d = 0; d < least.size(); ++d) {
    any = any || capped(d);
    if (static_cast<double>(least[d]) > cap_of(plan, d))
      throw user_error(
          "parallelism.device_memory_mib is {:.2f}, and device {} needs {:.2f} MiB without a "
          "single token: raise it, or divide more (parallelism.sharding, more devices)",
          cap_of(plan, d) / (1 << 20), d, static_cast<double>(least[d]) / (1 << 20));
  }
  if (!any) return dealt_tokens(plan);
  const std::int64_t unit = plan.mesh.tensor;
  const TrainingConfig& training = plan.config.training;
  // All sequences on one rank.
  const std::int64_t all =
      padded_to(std::int64_t{training.global_batch_size} * training.sequence_length, unit);
  std::int64_t fits = 0, above = all / unit + 1;
  while (above - fits > 1) {
    const std::int64_t middle = fits + (above - fits) / 2;
    const std::vector<std::int64_t> bytes = bytes_of(plan, {middle * unit, degree});
    bool fit = true;
    for (std::size_t d = 0; d < bytes.size(); ++d)
      fit = fit && static_cast<double>(bytes[d]) <= cap_of(plan, d);
    (fit ? fits : above) = middle;
  }
  if (fits == 0)
    throw user_error(
        "parallelism.device_memory_mib is {}: it leaves no room for a single token; raise it, or "
        "divide more (parallelism.sharding, more devices)",
        fmt::join(plan.config.parallelism.device_memory_mib, ", "));
  return fits * unit;
}

MemoryLine line_of(const RunPlan& plan, const TokenShare& share) {
  const std::vector<std::int64_t> none = bytes_of(plan, {0, share.degree});
  const std::vector<std::int64_t> full = bytes_of(plan, share);
  // Of the device that has the least left.
  std::size_t tightest = 0;
  const auto left = [&](std::size_t d) {
    return std::min(cap_of(plan, d), 1e18) - static_cast<double>(full[d]);
  };
  for (std::size_t d = 1; d < full.size(); ++d)
    if (left(d) < left(tightest)) tightest = d;
  return {.state_bytes = static_cast<double>(none[tightest]),
          .stash_bytes_per_token = static_cast<double>(full[tightest] - none[tightest]) /
                                   static_cast<double>(share.tokens)};
}

// The section's seconds are those of the device that has most to do, as it was when it was
// measured, and cannot be divided into layers, ends and gathers afterwards. REQUIRES: times.flexsp.
void check_measured_here(const RunPlan& plan, const RunTimes& times) {
  const SequenceCosts& costs = *times.flexsp;
  const std::vector<std::int64_t> layers = device_layers(plan);
  const auto refuse = [&](const std::string& difference) {
    throw user_error(
        "parallelism.costs is '{}': {} when its section flexsp was measured; measure again (sluice "
        "profile --flexsp.enabled) or correct the configuration",
        plan.config.parallelism.costs, difference);
  };
  if (!costs.device_layers.empty() && costs.device_layers != layers)
    refuse(fmt::format("the layers of each device are {} and were {}", fmt::join(layers, ", "),
                       fmt::join(costs.device_layers, ", ")));
  // Files that do not list the layers tell them by these bytes, if they say what they are of.
  const double bytes = all_to_all_bytes_per_token(plan);
  const double layer = bytes / static_cast<double>(*std::max_element(layers.begin(), layers.end()));
  if (times.checked && costs.device_layers.empty() && costs.all_to_all_bytes_per_token != bytes)
    refuse(fmt::format("the layers of the busiest device are {} and were {:.4g}", bytes / layer,
                       costs.all_to_all_bytes_per_token / layer));
  const std::int64_t shards = plan.sharded() ? plan.mesh.shard : 1;
  if (costs.parameter_shards > 0 && costs.parameter_shards != shards)
    refuse(fmt::format("{} (parallelism.sharding) and {}",
                       shards == 1 ? std::string("no rank gathers parameters")
                                   : fmt::format("{} ranks gather parameters", shards),
                       costs.parameter_shards == 1
                           ? std::string("none did")
                           : fmt::format("{} did", costs.parameter_shards)));
}

}  // namespace

std::string ranks_text(const std::vector<int>& degrees) {
  return fmt::format("{} data {}", fmt::join(degrees, ", "),
                     degrees.size() == 1 && degrees.front() == 1 ? "rank" : "ranks");
}

RunCluster run_cluster(const RunPlan& plan, const RunTimes& times) {
  const std::string& file = plan.config.parallelism.costs;
  constexpr const char* kRemedy =
      "`sluice profile CONFIG --flexsp.enabled --out costs.json` writes a file that has them; then "
      "set parallelism.costs = \"costs.json\"";
  if (file.empty())
    throw user_error(
        "flexsp.enabled is true and parallelism.costs is not set: batches are planned by what "
        "sequences cost; {}",
        kRemedy);
  if (!times.flexsp)
    throw user_error(
        "parallelism.costs is '{}', which has no section flexsp: batches are planned by what "
        "sequences cost; {}",
        file, kRemedy);
  check_measured_here(plan, times);
  const FlexspConfig& flexsp = plan.config.flexsp;
  RunCluster out;
  Cluster& cluster = out.cluster;
  cluster.devices = plan.mesh.data();
  cluster.costs = *times.flexsp;
  cluster.costs.heads = plan.batch_limits().heads;
  if (flexsp.min_degree > cluster.devices)
    throw user_error("flexsp.min_degree is {}, and there are {}: give a smaller one",
                     flexsp.min_degree, counted(cluster.devices, "data rank"));
  const int most = flexsp.max_degree > 0 ? flexsp.max_degree : std::numeric_limits<int>::max();
  cluster.degrees =
      usable_degrees(cluster.costs, cluster.devices, flexsp.min_degree, most, out.excluded);
  if (const int degree = batch_strategy(flexsp.strategy)->degree; degree > 0) {
    if (std::find(cluster.degrees.begin(), cluster.degrees.end(), degree) == cluster.degrees.end())
      throw user_error("flexsp.strategy is {}: groups can have {} here; use one of them",
                       flexsp.strategy, ranks_text(cluster.degrees));
    cluster.degrees = {degree};
    out.excluded.clear();
  }
  // What is excluded on request needs no word.
  std::erase_if(out.excluded, [&](const ExcludedDegree& excluded) {
    return excluded.degree < flexsp.min_degree || excluded.degree > most;
  });
  out.most = {capacity_of(plan, cluster.degrees.back()), cluster.degrees.back()};
  cluster.capacity_tokens = out.most.tokens;
  const MemoryLine memory = line_of(plan, out.most);
  cluster.costs.state_bytes = memory.state_bytes;
  cluster.costs.stash_bytes_per_token = memory.stash_bytes_per_token;
  return out;
}

MemoryLine memory_line(const RunPlan& plan) { return line_of(plan, {dealt_tokens(plan), 1}); }

}  // namespace sluice::flexsp
