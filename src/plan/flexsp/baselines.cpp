#include "sluice/plan/flexsp/baselines.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "sluice/plan/flexsp/packing.h"
#include "sluice/plan/flexsp/priced.h"

namespace sluice::flexsp {
namespace {

std::int64_t bin_room(double fill, std::int64_t capacity, std::int64_t longest) {
  return std::max(static_cast<std::int64_t>(fill * static_cast<double>(capacity)), longest);
}

std::int64_t longest_of(std::span<const std::int64_t> lengths) {
  return *std::max_element(lengths.begin(), lengths.end());
}

// What a pair (t, c) has to know of the cluster.
struct Layout {
  int tensor, context;
  std::int64_t capacity;  // tokens of a replica
  double tensor_bytes_per_s, ring_bytes_per_s;

  int ranks() const { return tensor * context; }
};

std::optional<double> bandwidth(const SequenceCosts& costs, int degree) {
  const auto found = costs.bytes_per_s.find(degree);
  if (found == costs.bytes_per_s.end()) return std::nullopt;
  return found->second;
}

std::optional<Layout> layout_of(const Cluster& cluster, const TensorContextCosts& own, int tensor,
                                int context) {
  const SequenceCosts& costs = cluster.costs;
  const double memory = costs.bytes(1, static_cast<double>(cluster.capacity_tokens));
  const double states =
      own.model_state_bytes * (0.25 / tensor + 0.75 / static_cast<double>(cluster.devices));
  const double tokens = std::floor((memory - states) / costs.stash_bytes_per_token);
  if (tokens < 1) return std::nullopt;
  Layout out{tensor, context, static_cast<std::int64_t>(tokens) * tensor * context, 0, 0};
  if (tensor > 1) {
    const auto rate = bandwidth(costs, tensor);
    if (!rate) return std::nullopt;
    out.tensor_bytes_per_s = *rate;
  }
  if (context > 1) {
    const bool within = out.ranks() <= own.ranks_per_node;
    const auto rate = bandwidth(costs, within ? out.ranks() : 2 * own.ranks_per_node);
    if (!rate) return std::nullopt;
    out.ring_bytes_per_s = within ? *rate : *rate / 2 * own.ranks_per_node / tensor;
  }
  return out;
}

double seconds_of(const Layout& layout, const SequenceCosts& costs, const TokenSums& sums) {
  const double t = layout.tensor, c = layout.context;
  const double attention = costs.a1 * sums.squares / layout.ranks();
  double seconds = attention + costs.a2 * sums.tokens / layout.ranks();
  const double exchanged = costs.all_to_all_bytes_per_token * sums.tokens;
  if (layout.tensor > 1) seconds += exchanged / c * (t - 1) / t / layout.tensor_bytes_per_s;
  if (layout.context > 1) {
    const double ring = 0.75 * exchanged / t * (c - 1) / c / layout.ring_bytes_per_s;
    seconds += std::max(0.0, ring - attention);
  }
  return seconds;
}

}  // namespace

std::optional<PlannedBatch> fixed_degree(const Cluster& cluster,
                                         std::span<const std::int64_t> lengths, int degree,
                                         double fill) {
  const std::vector<int>& degrees = cluster.degrees;
  if (std::find(degrees.begin(), degrees.end(), degree) == degrees.end()) return std::nullopt;
  const std::int64_t capacity = cluster.capacity_tokens * degree;
  const std::int64_t longest = longest_of(lengths);
  if (longest > capacity) return std::nullopt;
  std::vector<Bin> bins = best_fit_decreasing(lengths, bin_room(fill, capacity, longest));
  const auto num_groups = static_cast<std::size_t>(cluster.devices / degree);
  BatchPlan plan;
  for (std::size_t first = 0; first < bins.size(); first += num_groups) {
    auto& groups = plan.microbatches.emplace_back();
    for (std::size_t g = 0; g < num_groups; ++g) {
      groups.push_back({.degree = degree, .first_rank = static_cast<int>(g) * degree});
      if (first + g >= bins.size()) continue;  // the last microbatch may have groups to spare
      groups.back().sequences = std::move(bins[first + g]);
      std::sort(groups.back().sequences.begin(), groups.back().sequences.end());
    }
  }
  return priced(cluster, lengths, plan);
}

std::optional<Adapted> batch_ada(const Cluster& cluster, std::span<const std::int64_t> lengths,
                                 double fill) {
  std::optional<Adapted> best;
  for (const int degree : cluster.degrees) {
    std::optional<PlannedBatch> batch = fixed_degree(cluster, lengths, degree, fill);
    if (batch && (!best || batch->seconds < best->batch.seconds))
      best = Adapted{degree, std::move(*batch)};
  }
  return best;
}

std::optional<TensorContext> tensor_context(const Cluster& cluster,
                                            std::span<const std::int64_t> lengths,
                                            const TensorContextCosts& own) {
  const SequenceCosts& costs = cluster.costs;
  const std::int64_t longest = longest_of(lengths);
  std::optional<TensorContext> best;
  for (int tensor = 1; tensor <= std::min(own.ranks_per_node, cluster.devices); tensor *= 2)
    for (int context = 1; context <= cluster.devices / tensor; context *= 2) {
      const std::optional<Layout> layout = layout_of(cluster, own, tensor, context);
      if (costs.heads % tensor != 0 || !layout) continue;
      if (layout->capacity < longest) continue;
      const std::vector<Bin> bins =
          best_fit_decreasing(lengths, bin_room(own.fill, layout->capacity, longest));
      const auto replicas = static_cast<std::size_t>(cluster.devices / layout->ranks());
      TensorContext out{tensor, context, 0, costs.b1};
      for (std::size_t first = 0; first < bins.size(); first += replicas) {
        double slowest = 0;
        for (std::size_t b = first; b < std::min(first + replicas, bins.size()); ++b) {
          TokenSums sums;
          for (const std::int64_t sequence : bins[b])
            sums.add(static_cast<double>(lengths[static_cast<std::size_t>(sequence)]));
          slowest = std::max(slowest, seconds_of(*layout, costs, sums));
        }
        out.seconds += slowest;
        ++out.num_microbatches;
      }
      if (!best || out.seconds < best->seconds) best = out;
    }
  return best;
}

}  // namespace sluice::flexsp
