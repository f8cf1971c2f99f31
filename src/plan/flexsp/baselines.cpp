// STAND-IN until the real file is merged.
#include "sluice/plan/flexsp/baselines.h"

#include <algorithm>
#include <numeric>

namespace sluice::flexsp {

std::optional<PlannedBatch> fixed_degree(const Cluster& cluster,
                                         std::span<const std::int64_t> lengths, int degree,
                                         double fill) {
  const double room = static_cast<double>(cluster.capacity_tokens) * degree;
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  if (static_cast<double>(longest) > room) return std::nullopt;
  const auto most = static_cast<std::int64_t>(std::max(fill * room, static_cast<double>(longest)));
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
  PlannedBatch batch;
  const int groups = cluster.devices / degree;
  std::vector<PlannedGroup> bins;
  for (const std::size_t n : order) {
    PlannedGroup* best = nullptr;
    for (PlannedGroup& bin : bins)
      if (bin.tokens + lengths[n] <= most && (!best || bin.tokens > best->tokens)) best = &bin;
    if (!best) {
      best = &bins.emplace_back();
      best->group.degree = degree;
      best->group.first_rank = static_cast<int>((std::ssize(bins) - 1) % groups) * degree;
    }
    best->tokens += lengths[n];
    best->group.sequences.push_back(static_cast<std::int64_t>(n));
  }
  for (std::size_t n = 0; n < bins.size(); ++n) {
    if (n % static_cast<std::size_t>(groups) == 0) batch.microbatches.emplace_back();
    PlannedMicrobatch& microbatch = batch.microbatches.back();
    PlannedGroup& bin = bins[n];
    TokenSums sums;
    for (const std::int64_t s : bin.group.sequences)
      sums.add(static_cast<double>(lengths[static_cast<std::size_t>(s)]));
    bin.seconds = cluster.costs.seconds(degree, sums);
    bin.all_to_all_seconds = cluster.costs.all_to_all_seconds(degree, sums);
    bin.bytes = cluster.costs.bytes(degree, sums.tokens);
    microbatch.seconds = std::max(microbatch.seconds, bin.seconds);
    microbatch.groups.push_back(std::move(bin));
  }
  for (const PlannedMicrobatch& microbatch : batch.microbatches)
    batch.seconds += microbatch.seconds;
  return batch;
}

std::optional<Adapted> batch_ada(const Cluster& cluster, std::span<const std::int64_t> lengths,
                                 double fill) {
  std::optional<Adapted> best;
  for (const int degree : cluster.degrees)
    if (auto batch = fixed_degree(cluster, lengths, degree, fill);
        batch && (!best || batch->seconds < best->batch.seconds))
      best = Adapted{degree, std::move(*batch)};
  return best;
}

std::optional<TensorContext> tensor_context(const Cluster&, std::span<const std::int64_t>,
                                            const TensorContextCosts&) {
  return std::nullopt;
}

}  // namespace sluice::flexsp
