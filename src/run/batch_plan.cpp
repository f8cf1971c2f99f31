#include "sluice/run/batch_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>

#include "sluice/base/error.h"

namespace sluice {

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
    plan.microbatches[static_cast<std::size_t>(m)].resize(static_cast<std::size_t>(num_ranks));
    for (int rank = 0; rank < num_ranks; ++rank)
      fewest.emplace(0, m, rank);
  }
  for (const std::int64_t sequence : order) {
    const auto [tokens, m, rank] = fewest.top();
    fewest.pop();
    plan.microbatches[static_cast<std::size_t>(m)][static_cast<std::size_t>(rank)].push_back(
        sequence);
    fewest.emplace(tokens + lengths[static_cast<std::size_t>(sequence)], m, rank);
  }
  for (auto& ranks : plan.microbatches)
    for (auto& sequences : ranks)
      std::sort(sequences.begin(), sequences.end());
  return plan;
}

std::vector<std::int64_t> padded_tokens(const BatchPlan& plan,
                                        std::span<const std::int64_t> lengths, int rank,
                                        int multiple) {
  std::vector<std::int64_t> out;
  for (const auto& ranks : plan.microbatches) {
    std::int64_t tokens = 0;
    for (const std::int64_t sequence : ranks[static_cast<std::size_t>(rank)])
      tokens += lengths[static_cast<std::size_t>(sequence)];
    out.push_back(padded_to(tokens, multiple));
  }
  return out;
}

}  // namespace sluice
