#include "sluice/plan/flexsp/run_planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/config/batch_strategy.h"
#include "sluice/plan/flexsp/baselines.h"
#include "sluice/plan/flexsp/pipelined.h"
#include "sluice/plan/flexsp/run_cluster.h"

namespace sluice::flexsp {
namespace {

constexpr double kFill = 0.9;  // of groups that have one degree
constexpr int kMostReduced = 10;

// The schedules of a run, by their number of microbatches.
class Schedules {
 public:
  explicit Schedules(const PlannedRun& run) : plan_(run.plan), times_(run.times) {
    known_.emplace(plan_.schedule.num_microbatches, plan_.schedule);
  }

  const Schedule* of(int num_microbatches) {
    const std::lock_guard lock(mutex_);
    const auto [known, is_new] = known_.try_emplace(num_microbatches, std::nullopt);
    if (is_new) known->second = made(num_microbatches);
    return known->second ? &*known->second : nullptr;
  }

  // Why there is none of some number; "": there was one of every number so far.
  std::string refusal() {
    const std::lock_guard lock(mutex_);
    return refusal_;
  }

 private:
  std::optional<Schedule> made(int num_microbatches) {
    try {
      return schedule_with(plan_, times_, num_microbatches);
    } catch (const UserError& error) {
      refusal_ = error.what();
      return std::nullopt;
    }
  }

  const RunPlan plan_;
  const RunTimes times_;
  std::mutex mutex_;
  std::map<int, std::optional<Schedule>> known_;
  std::string refusal_;
};

class Planner {
 public:
  explicit Planner(const PlannedRun& run)
      : cluster_(run_cluster(run.plan, run.times).cluster),
        strategy_(*batch_strategy(run.plan.config.flexsp.strategy)),
        trials_(run.plan.config.flexsp.trials),
        stages_(run.plan.schedule.num_devices()),
        schedule_name_(run.plan.schedule.name),
        schedules_(run),
        pipeline_(run.plan, run.times, [this](int count) { return schedules_.of(count); }) {}

  const Cluster& cluster() const { return cluster_; }
  std::int64_t longest() const { return room_of(cluster_); }
  const Schedule& schedule(int num_microbatches) {
    const Schedule* const found = schedules_.of(num_microbatches);
    SLUICE_CHECK(found, "{} takes no {} microbatches", schedule_name_, num_microbatches);
    return *found;
  }

  BatchPlanner::Planned plan(std::span<const std::int64_t> lengths) {
    check_lengths(cluster_, lengths);
    const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    // More microbatches may be kept at once than those that the memory was worked out for, so each
    // has to be smaller.
    Cluster cluster = cluster_;
    std::vector<PlannedBatch> tried;
    for (int reduced = 0; reduced < kMostReduced && longest <= room_of(cluster); ++reduced) {
      std::vector<PlannedBatch> some = candidates(cluster, lengths);
      if (const auto best = pipeline_.best(some, lengths)) return {best->plan(), best->seconds};
      if (tried.empty()) tried = std::move(some);
      cluster.capacity_tokens = cluster.capacity_tokens * 3 / 4;
    }
    if (tried.empty())
      throw bad_data(
          "flexsp.strategy is fixed:{}: such a group holds {}, and a sequence has {}; use larger "
          "groups, or drop or truncate it (data.overlong)",
          strategy_.degree, counted(cluster_.capacity_tokens * strategy_.degree, "token"), longest);
    const std::string refusal = schedules_.refusal();
    throw user_error("the batch can be planned in {} microbatches, and {} cannot run it: {}",
                     fmt::join(numbers(tried), " or "), schedule_name_,
                     refusal.empty()
                         ? "it would stash more than there is room for; use a schedule that keeps "
                           "fewer microbatches, or raise parallelism.device_memory_mib"
                         : refusal + "; use another parallelism.pipeline_parallel_schedule");
  }

 private:
  static std::vector<std::size_t> numbers(const std::vector<PlannedBatch>& batches) {
    std::vector<std::size_t> out;
    for (const PlannedBatch& batch : batches)
      out.push_back(batch.microbatches.size());
    return out;
  }

  // The first number from `count` on that the schedule takes, looking at a few; above `most`: none.
  int next_allowed(int count, int most) {
    constexpr int kFew = 64;
    for (int n = count; n <= std::min(most, count + kFew); ++n)
      if (schedules_.of(n)) return n;
    return most + 1;
  }

  static std::int64_t room_of(const Cluster& cluster) {
    return cluster.capacity_tokens * cluster.degrees.back();
  }

  std::vector<PlannedBatch> candidates(const Cluster& cluster,
                                       std::span<const std::int64_t> lengths) {
    std::vector<PlannedBatch> out;
    const auto add = [&](std::optional<PlannedBatch> batch) {
      if (batch && !batch->microbatches.empty()) out.push_back(std::move(*batch));
    };
    const auto most = static_cast<int>(std::ssize(lengths));
    if (strategy_.kind != BatchStrategy::Kind::flex) {
      for (const int degree : cluster.degrees) {
        std::optional<PlannedBatch> packed = fixed_degree(cluster, lengths, degree, kFill);
        if (!packed) continue;
        const auto planned = static_cast<int>(packed->microbatches.size());
        add(std::move(packed));
        // Bins that are filled less are more bins.
        for (const int count : counts_from(planned, most))
          add(fixed_degree(cluster, lengths, degree, kFill * planned / count));
      }
      return out;
    }
    add(plan_batch(cluster, lengths, {.trials = trials_}));
    for (const int count : counts_from(static_cast<int>(out.front().microbatches.size()), most))
      add(plan_batch(cluster, lengths, {.trials = trials_, .microbatches = count}));
    return out;
  }

  // Other numbers of microbatches than the planned one, above it: a pipeline is idle for less of
  // its time when there are more, and the schedule may not take as many as were planned, but more.
  std::set<int> counts_from(int planned, int most) {
    std::set<int> counts;
    for (int rounds = 1; stages_ > 1 && rounds <= 4; ++rounds)
      counts.insert(next_allowed(std::max(planned, rounds * stages_), most));
    counts.insert(next_allowed(planned, most));
    std::erase_if(counts, [&](int count) { return count <= planned || count > most; });
    return counts;
  }

  const Cluster cluster_;
  const BatchStrategy strategy_;
  const int trials_, stages_;
  const std::string schedule_name_;
  Schedules schedules_;
  const Pipeline pipeline_;
};

// What the makespans of pipelines depend on.
std::string digest_of(const RunTimes& times) {
  std::string text = fmt::format("{} {}", times.link.bytes_per_time, times.link.latency);
  for (const PartTimes::Ops& ops : {times.parts.layer, times.parts.embedding, times.parts.head})
    text += fmt::format(" {} {} {} {}", ops.f, ops.i, ops.w, ops.b);
  return fmt::format("{:016x}", hash_of(text));
}

std::string identity_of(const Cluster& cluster, const RunTimes& times) {
  const SequenceCosts& costs = cluster.costs;
  std::vector<std::string> rates;
  for (const auto& [degree, rate] : costs.bytes_per_s)
    rates.push_back(fmt::format("{}: {}", degree, rate));
  return fmt::format(
      "{} tokens on {} ranks in groups of {}; a1 {}; a2 {}; b1 {}; {} bytes per token; bytes per "
      "second {}; times of stages {}",
      cluster.capacity_tokens, cluster.devices, fmt::join(cluster.degrees, ", "), costs.a1,
      costs.a2, costs.b1, costs.all_to_all_bytes_per_token, join(rates, ", "), digest_of(times));
}

}  // namespace

std::shared_ptr<const BatchPlanner> run_planner(const PlannedRun& run) {
  if (!run.plan.config.flexsp.enabled) return nullptr;
  const auto planner = std::make_shared<Planner>(run);
  BatchPlanner out;
  out.plan = [planner](std::span<const std::int64_t> lengths) { return planner->plan(lengths); };
  out.schedule = [planner](int count) -> const Schedule& { return planner->schedule(count); };
  out.degrees = planner->cluster().degrees;
  out.longest = planner->longest();
  out.identity = identity_of(planner->cluster(), run.times);
  return std::make_shared<const BatchPlanner>(std::move(out));
}

}  // namespace sluice::flexsp
