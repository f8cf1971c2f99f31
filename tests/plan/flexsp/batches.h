// Clusters and batches that tests of the batch planner share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "sluice/plan/flexsp/prices.h"

namespace sluice::flexsp::test {

// The published constants of 7b, with this capacity.
inline Cluster cluster_7b(int devices, std::int64_t capacity, int min_degree = 1,
                          int max_degree = 64) {
  Cluster cluster{
      .devices = devices,
      .capacity_tokens = capacity,
      .degrees = {},
      .costs = published_sequence_costs("7b", 64, 192 * 1024, StateSharding::parameters)};
  std::vector<ExcludedDegree> excluded;
  cluster.degrees = usable_degrees(cluster.costs, devices, min_degree, max_degree, excluded);
  return cluster;
}

// A microbatch of 15 sequences whose optimum on 64 devices is known.
inline const std::vector<std::int64_t> kFifteen = {36096, 30336, 28928, 26112, 24576,
                                                   23296, 18944, 18048, 17920, 17664,
                                                   17664, 17152, 15872, 15872, 14336};

// From 0 up to 1, without it. (What the standard's distributions draw is not the same everywhere.)
inline double uniform(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}
inline std::int64_t between(std::mt19937_64& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(uniform(random) * static_cast<double>(most - least + 1));
}

// Text of the web: most lengths are log-normal, and a few have a Pareto tail.
struct Mixture {
  double mean, deviation;  // of the logarithm
  double tail_share, tail_index;
};
constexpr Mixture kCommonCrawlLike{6.9, 1.25, 0.03, 0.9};
constexpr Mixture kGithubLike{6.5, 1.4, 0.05, 0.75};

// Lengths up to max_length, padded to a multiple of 128.
inline std::vector<std::int64_t> batch_of(const Mixture& mixture, int count,
                                          std::int64_t max_length, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> lengths;
  while (static_cast<int>(lengths.size()) < count) {
    const bool tail = uniform(random) < mixture.tail_share;
    const double u = 1 - uniform(random), v = uniform(random);
    const double normal = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::acos(-1.0) * v);
    const double length = tail ? 8192 * std::pow(u, -1 / mixture.tail_index)
                               : std::exp(mixture.mean + mixture.deviation * normal);
    if (length > static_cast<double>(max_length)) continue;
    lengths.push_back((std::max<std::int64_t>(1, std::llround(length)) + 127) / 128 * 128);
  }
  return lengths;
}

}  // namespace sluice::flexsp::test
