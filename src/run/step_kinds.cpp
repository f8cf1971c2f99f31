#include "sluice/run/step_kinds.h"

#include <algorithm>
#include <set>

#include "sluice/base/error.h"
#include "sluice/base/text.h"
#include "sluice/config/resolve.h"

namespace sluice {
namespace {

using Shares = std::vector<TokenShare>;

// Bytes grow with tokens and with the degree.
TokenShare larger(const TokenShare& a, const TokenShare& b) {
  return {std::max(a.tokens, b.tokens), std::max(a.degree, b.degree)};
}

std::int64_t num_ops(const Schedule& schedule) {
  std::int64_t ops = 0;
  for (const Program& program : schedule.programs)
    ops += std::ssize(program);
  return std::max<std::int64_t>(ops, 1);
}

}  // namespace

void count_shares(BatchPlans& plans, const MeshShape& mesh, std::int64_t sequence_length) {
  std::map<int, std::set<Shares>> distinct;
  for (const auto& [step, batch] : plans.steps) {
    const auto& microbatches = batch.plan.microbatches;
    std::vector<Shares> ranks(static_cast<std::size_t>(mesh.data()), Shares(microbatches.size()));
    for (std::size_t m = 0; m < microbatches.size(); ++m)
      for (const SequenceGroup& group : microbatches[m]) {
        if (group.sequences.empty()) continue;
        const std::int64_t tokens = std::ssize(group.sequences) * sequence_length;
        const TokenShare share = {
            padded_to(tokens, std::int64_t{group.degree} * mesh.tensor) / group.degree,
            group.degree};
        plans.most = larger(plans.most, share);
        for (int rank = group.first_rank; rank < group.first_rank + group.degree; ++rank)
          ranks[static_cast<std::size_t>(rank)][m] = share;
      }
    distinct[batch.plan.num_microbatches()].insert(ranks.begin(), ranks.end());
  }
  for (const auto& [count, lists] : distinct)
    plans.shares[count].assign(lists.begin(), lists.end());
}

std::vector<Shares> merged_shares(std::vector<Shares> lists, std::size_t most) {
  if (lists.size() <= most) return lists;
  std::sort(lists.begin(), lists.end());  // neighbours are alike
  std::vector<Shares> merged(most);
  for (std::size_t n = 0; n < lists.size(); ++n) {
    Shares& into = merged[n * most / lists.size()];
    into.resize(lists[n].size());
    std::transform(into.begin(), into.end(), lists[n].begin(), into.begin(), larger);
  }
  return merged;
}

void for_step_kinds(const RunPlan& plan, const std::function<void(const RunPlan&)>& use) {
  // So many simulations of so many ops take a fraction of a second.
  constexpr std::int64_t kMostKinds = 64, kMostOps = 2'000'000;
  if (!plan.batch_plans || !plan.shares.empty()) return use(plan);
  const auto& by_number = plan.batch_plans->shares;
  const std::int64_t kinds = kMostKinds / std::max<std::int64_t>(std::ssize(by_number), 1);
  bool used = false;
  RunPlan step = plan;
  for (const auto& [count, lists] : by_number) {
    if (!plan.has_schedule(count)) continue;
    step.schedule = plan.schedule_of(count);
    const std::int64_t most = std::min(kinds, kMostOps / num_ops(step.schedule));
    for (Shares& shares :
         merged_shares(lists, static_cast<std::size_t>(std::max<std::int64_t>(most, 1)))) {
      step.shares = std::move(shares);
      use(step);
      used = true;
    }
  }
  if (!used) use(plan);
}

std::optional<RunPlan> validation_of_planned(const RunPlan& plan) {
  if (!plan.batch_plans || !plan.shares.empty() || !validates(plan.config)) return std::nullopt;
  RunPlan validation = plan;
  validation.batch_plans = nullptr;
  return validation;
}

std::string microbatches_text(const RunPlan& plan) {
  const std::string held = plan.microbatch_text();
  if (plan.config.flexsp.enabled)
    return fmt::format("as many microbatches as are planned, of {}", held);
  if (!plan.batch_plans || plan.batch_plans->shares.empty())
    return fmt::format("{} of {}", counted(plan.num_microbatches(), "microbatch"), held);
  const auto& by_number = plan.batch_plans->shares;
  const int least = by_number.begin()->first, most = by_number.rbegin()->first;
  return least == most ? fmt::format("{} of {}", counted(least, "microbatch"), held)
                       : fmt::format("{} to {} microbatches of {}", least, most, held);
}

void take_largest_shares(RunPlan& plan) {
  if (!plan.batch_plans || !plan.shares.empty()) return;
  const auto own = plan.batch_plans->shares.find(plan.schedule.num_microbatches);
  if (own != plan.batch_plans->shares.end()) plan.shares = merged_shares(own->second, 1)[0];
}

RunPlan for_search(RunPlan plan, int microbatches) {
  constexpr std::size_t kFew = 8;
  if (!plan.batch_plans) return plan;
  auto plans = std::make_shared<BatchPlans>();
  plans->name = plan.batch_plans->name;
  plans->most = plan.batch_plans->most;
  const auto own = plan.batch_plans->shares.find(plan.schedule.num_microbatches);
  if (own != plan.batch_plans->shares.end()) {
    std::vector<Shares> lists = own->second;
    for (Shares& shares : lists)
      shares.resize(static_cast<std::size_t>(microbatches));
    plans->shares[microbatches] = merged_shares(std::move(lists), kFew);
  }
  plan.batch_plans = std::move(plans);
  return plan;
}

}  // namespace sluice
