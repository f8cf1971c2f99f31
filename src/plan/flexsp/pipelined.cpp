#include "sluice/plan/flexsp/pipelined.h"

#include <algorithm>
#include <numeric>

#include "sluice/run/op_costs.h"
#include "sluice/sim/simulate.h"

namespace sluice::flexsp {
namespace {

constexpr int kMostEmpty = 64;  // microbatches that are added to get a number that is allowed

double seconds_of_ops(const OpCosts& op, bool split) { return op.f + (split ? op.i + op.w : op.b); }

// The most that any rank has of each microbatch.
std::vector<TokenShare> largest_shares(const PlannedBatch& batch,
                                       std::span<const std::int64_t> lengths, int tensor) {
  std::vector<TokenShare> shares;
  for (const PlannedMicrobatch& microbatch : batch.microbatches) {
    TokenShare most;
    for (const PlannedGroup& group : microbatch.groups) {
      const TokenShare share = share_of(group.group, lengths, tensor);
      if (share.tokens == 0) continue;
      most = {std::max(most.tokens, share.tokens), std::max(most.degree, share.degree)};
    }
    shares.push_back(most);
  }
  return shares;
}

bool is_empty(const PlannedMicrobatch& microbatch) {
  return std::all_of(microbatch.groups.begin(), microbatch.groups.end(),
                     [](const PlannedGroup& group) { return group.group.sequences.empty(); });
}

std::vector<double> seconds_by_microbatch(const PlannedBatch& batch) {
  std::vector<double> seconds;
  for (const PlannedMicrobatch& microbatch : batch.microbatches)
    seconds.push_back(is_empty(microbatch) ? 0 : microbatch.seconds);
  return seconds;
}

}  // namespace

Pipeline::Pipeline(const RunPlan& plan, const RunTimes& times, ScheduleFor schedule_for)
    : plan_(plan), times_(0, 1), link_(times.link), schedule_for_(std::move(schedule_for)) {
  plan_.shares.clear();
  times_ = costs_of_parts(times.parts, plan_);
  const Schedule& schedule = plan_.schedule;
  const bool split = schedule.has(OpKind::I);
  for (int device = 0; device < schedule.num_devices(); ++device) {
    double work = 0;
    for (const int stage : plan_.stages_of(device))
      work += seconds_of_ops(times_.at(stage, 0), split);
    busiest_ = std::max(busiest_, work);
  }
}

std::optional<double> Pipeline::seconds(const PlannedBatch& batch,
                                        std::span<const std::int64_t> lengths) const {
  const auto num_microbatches = static_cast<int>(batch.microbatches.size());
  const Schedule* const schedule = schedule_for_(num_microbatches);
  if (!schedule) return std::nullopt;
  RunPlan step = plan_;
  step.schedule = *schedule;
  step.shares = largest_shares(batch, lengths, plan_.mesh.tensor);
  Costs costs = byte_costs(step);
  costs.default_link = link_;
  const std::vector<double> seconds = seconds_by_microbatch(batch);
  std::vector<OpCosts> table;
  for (int m = 0; m < num_microbatches; ++m) {
    const double scale = seconds[static_cast<std::size_t>(m)] / busiest_;
    for (int stage = 0; stage < costs.num_stages(); ++stage) {
      OpCosts& op = table.emplace_back(costs.of(m, stage, 0));
      const OpCosts& mean = times_.at(stage, 0);
      op.f = mean.f * scale;
      op.i = mean.i * scale;
      op.w = mean.w * scale;
      op.b = mean.b * scale;
    }
  }
  costs.set_microbatches(std::move(table));
  const Simulation simulation = simulate(*schedule, costs);
  for (std::size_t d = 0; d < plan_.peak_stash_bytes.size(); ++d)
    if (simulation.devices[d].peak_bytes > static_cast<double>(plan_.peak_stash_bytes[d]))
      return std::nullopt;
  return simulation.makespan;
}

std::optional<PlannedBatch> Pipeline::best(std::span<const PlannedBatch> candidates,
                                           std::span<const std::int64_t> lengths) const {
  std::optional<PlannedBatch> best;
  for (const PlannedBatch& candidate : candidates) {
    PlannedBatch batch = candidate;
    const auto least = static_cast<int>(batch.microbatches.size());
    int allowed = least;
    while (allowed <= least + kMostEmpty && !schedule_for_(allowed))
      ++allowed;
    if (allowed > least + kMostEmpty) continue;
    batch.microbatches.resize(static_cast<std::size_t>(allowed));
    std::vector<std::vector<std::size_t>> orders = orders_of(seconds_by_microbatch(batch));
    if (plan_.schedule.num_devices() == 1) orders.resize(1);  // nobody waits for a neighbour
    for (const std::vector<std::size_t>& order : orders) {
      PlannedBatch ordered;
      for (const std::size_t m : order)
        ordered.microbatches.push_back(batch.microbatches[m]);
      const std::optional<double> makespan = seconds(ordered, lengths);
      // Sums of equal times in another order differ by their rounding.
      if (!makespan || (best && *makespan >= best->seconds * (1 - 1e-9))) continue;
      ordered.seconds = *makespan;
      best = std::move(ordered);
    }
  }
  return best;
}

std::vector<std::vector<std::size_t>> orders_of(std::span<const double> seconds) {
  const std::size_t count = seconds.size();
  std::vector<std::size_t> given(count), ascending, middle;
  std::iota(given.begin(), given.end(), std::size_t{0});
  ascending = given;
  std::stable_sort(ascending.begin(), ascending.end(),
                   [&](std::size_t a, std::size_t b) { return seconds[a] < seconds[b]; });
  // Every second one up, the others down: the longest in the middle.
  for (std::size_t n = 0; n < count; n += 2)
    middle.push_back(ascending[n]);
  for (std::size_t n = count - count % 2; n > 0; n -= 2)
    if (n - 1 < count) middle.push_back(ascending[n - 1]);
  // Halves of the same turned round: the longest at both ends.
  std::vector<std::size_t> ends(middle.begin() + static_cast<std::ptrdiff_t>(count / 2),
                                middle.end());
  ends.insert(ends.end(), middle.begin(), middle.begin() + static_cast<std::ptrdiff_t>(count / 2));
  std::vector<std::vector<std::size_t>> orders;
  const auto add = [&](const std::vector<std::size_t>& order) {
    if (std::find(orders.begin(), orders.end(), order) == orders.end()) orders.push_back(order);
  };
  add(given);
  add({given.rbegin(), given.rend()});
  add(ascending);
  add({ascending.rbegin(), ascending.rend()});
  add(middle);
  add(ends);
  return orders;
}

}  // namespace sluice::flexsp
