#include "sluice/run/batch_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>

#include "sluice/base/error.h"
#include "sluice/base/text.h"

namespace sluice {

const SequenceGroup* BatchPlan::group_of(int microbatch, int rank) const {
  for (const SequenceGroup& group : microbatches[static_cast<std::size_t>(microbatch)])
    if (group.holds(rank)) return &group;
  return nullptr;
}

TokenShare share_of(const SequenceGroup& group, std::span<const std::int64_t> lengths, int tensor) {
  std::int64_t tokens = 0;
  for (const std::int64_t sequence : group.sequences)
    tokens += lengths[static_cast<std::size_t>(sequence)];
  return {padded_to(tokens, std::int64_t{group.degree} * tensor) / group.degree, group.degree};
}

std::vector<TokenShare> token_shares(const BatchPlan& plan, std::span<const std::int64_t> lengths,
                                     int rank, int tensor) {
  std::vector<TokenShare> shares;
  for (int m = 0; m < plan.num_microbatches(); ++m) {
    const SequenceGroup* group = plan.group_of(m, rank);
    shares.push_back(group ? share_of(*group, lengths, tensor) : TokenShare());
  }
  return shares;
}

BatchPlan deal_longest_first(std::span<const std::int64_t> lengths, int num_microbatches,
                             int num_ranks) {
  SLUICE_CHECK(num_microbatches > 0 && num_ranks > 0, "{} microbatches on {} ranks",
               num_microbatches, num_ranks);
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return lengths[static_cast<std::size_t>(a)] > lengths[static_cast<std::size_t>(b)];
  });

  using Hand = std::tuple<std::int64_t, int, int>;  // tokens so far, microbatch, rank
  std::priority_queue<Hand, std::vector<Hand>, std::greater<>> fewest;
  BatchPlan plan;
  plan.microbatches.resize(static_cast<std::size_t>(num_microbatches));
  for (int m = 0; m < num_microbatches; ++m) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      plan.microbatches[static_cast<std::size_t>(m)].push_back({.first_rank = rank});
      fewest.emplace(0, m, rank);
    }
  }
  for (const std::int64_t sequence : order) {
    const auto [tokens, m, rank] = fewest.top();
    fewest.pop();
    plan.microbatches[static_cast<std::size_t>(m)][static_cast<std::size_t>(rank)]
        .sequences.push_back(sequence);
    fewest.emplace(tokens + lengths[static_cast<std::size_t>(sequence)], m, rank);
  }
  for (auto& groups : plan.microbatches)
    for (SequenceGroup& group : groups)
      std::sort(group.sequences.begin(), group.sequences.end());
  return plan;
}

namespace {

std::string group_problem(const SequenceGroup& group, const BatchLimits& limits) {
  if (group.degree < 1 || !std::has_single_bit(static_cast<unsigned>(group.degree)))
    return fmt::format("a group has degree {}: needs a power of two", group.degree);
  if (group.degree > limits.num_ranks)
    return fmt::format("a group has degree {}: there are {}", group.degree,
                       counted(limits.num_ranks, "data rank"));
  if (limits.heads % group.degree != 0)
    return fmt::format(
        "a group has degree {}: ranks that share sequences divide the heads, and a tensor rank has "
        "{}; use a degree that divides them",
        group.degree, limits.heads);
  if (group.first_rank < 0 || group.first_rank % group.degree != 0 ||
      group.first_rank + group.degree > limits.num_ranks)
    return fmt::format(
        "a group of degree {} starts at rank {}: needs a multiple of {} from 0 to {}", group.degree,
        group.first_rank, group.degree, (limits.num_ranks / group.degree - 1) * group.degree);
  return {};
}

}  // namespace

std::string problem_of(const BatchPlan& plan, const BatchLimits& limits) {
  if (plan.microbatches.empty()) return "there are no microbatches";
  std::vector<int> times(static_cast<std::size_t>(limits.num_sequences), 0);
  for (std::size_t m = 0; m < plan.microbatches.size(); ++m) {
    std::vector<bool> taken(static_cast<std::size_t>(limits.num_ranks), false);
    const auto located = [&](const std::string& problem) {
      return fmt::format("microbatch {}: {}", m, problem);
    };
    for (const SequenceGroup& group : plan.microbatches[m]) {
      if (const std::string problem = group_problem(group, limits); !problem.empty())
        return located(problem);
      for (int rank = group.first_rank; rank < group.first_rank + group.degree; ++rank) {
        if (taken[static_cast<std::size_t>(rank)])
          return located(fmt::format("rank {} is in two groups", rank));
        taken[static_cast<std::size_t>(rank)] = true;
      }
      for (const std::int64_t sequence : group.sequences) {
        if (sequence < 0 || sequence >= limits.num_sequences)
          return located(fmt::format(
              "sequence {} is not in the global batch, which has 0 to {}: plan batches "
              "of {}, or set training.global_batch_size to what was planned",
              sequence, limits.num_sequences - 1, counted(limits.num_sequences, "sequence")));
        if (++times[static_cast<std::size_t>(sequence)] > 1)
          return located(fmt::format("sequence {} is planned twice", sequence));
      }
    }
  }
  const auto forgotten = std::find(times.begin(), times.end(), 0);
  if (forgotten != times.end())
    return fmt::format(
        "sequence {} is in no group; {} of the {} of training.global_batch_size are planned",
        forgotten - times.begin(), limits.num_sequences - std::count(times.begin(), times.end(), 0),
        counted(limits.num_sequences, "sequence"));
  return {};
}

}  // namespace sluice
