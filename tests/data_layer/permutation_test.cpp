#include "sluice/data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

namespace sluice {
namespace {

std::vector<std::int64_t> order(std::int64_t size, std::uint64_t seed, std::uint64_t epoch) {
  const Permutation permutation(size, seed, epoch);
  std::vector<std::int64_t> out;
  for (std::int64_t n = 0; n < size; ++n)
    out.push_back(permutation.at(n));
  return out;
}

TEST(Permutation, IsABijectionForEverySize) {
  std::vector<std::int64_t> sizes = {1000, 4095, 4096, 4097, 65537, 1 << 18};
  for (std::int64_t size = 1; size <= 130; ++size)
    sizes.push_back(size);
  for (const std::int64_t size : sizes) {
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (const std::int64_t place : order(size, 42, 3)) {
      ASSERT_TRUE(place >= 0 && place < size) << place << " of " << size;
      ASSERT_FALSE(seen[static_cast<std::size_t>(place)]) << place << " twice of " << size;
      seen[static_cast<std::size_t>(place)] = true;
    }
  }
}

TEST(Permutation, ReachesTheLargestSizes) {
  const std::int64_t size = (std::int64_t{1} << 62) + 12345;
  const Permutation permutation(size, 1, 0);
  for (const std::int64_t index : {std::int64_t{0}, size / 2, size - 1}) {
    const std::int64_t place = permutation.at(index);
    EXPECT_TRUE(place >= 0 && place < size) << place;
  }
}

// These values are a promise: a run that is resumed by a later version must see the same data.
TEST(Permutation, TheOrderNeverChanges) {
  EXPECT_EQ(order(10, 0, 0), (std::vector<std::int64_t>{8, 9, 6, 5, 4, 3, 0, 1, 7, 2}));
  EXPECT_EQ(order(10, 0, 1), (std::vector<std::int64_t>{5, 7, 2, 8, 1, 3, 4, 9, 0, 6}));
  EXPECT_EQ(Permutation(1000000007, 42, 5).at(123456789), 683269348);
}

TEST(Permutation, SeedAndEpochEachChangeTheOrder) {
  EXPECT_NE(order(100, 1, 0), order(100, 2, 0));
  EXPECT_NE(order(100, 1, 0), order(100, 1, 1));
  EXPECT_NE(order(100, 1, 0), order(100, 0, 1));
}

// Each of the n values as often at each of the n places; the statistic is near (n-1)^2 with a
// deviation of about sqrt(2) * (n-1).
TEST(Permutation, EveryPlaceGetsEveryValueEquallyOften) {
  for (const std::int64_t size : {2, 3, 5, 16, 37}) {
    const int trials = 20000;
    std::map<std::pair<std::int64_t, std::int64_t>, int> counts;
    for (int seed = 0; seed < trials; ++seed) {
      const auto places = order(size, static_cast<std::uint64_t>(seed), 7);
      for (std::int64_t n = 0; n < size; ++n)
        ++counts[{n, places[static_cast<std::size_t>(n)]}];
    }
    const double expected = trials / static_cast<double>(size);
    double statistic = 0;
    for (std::int64_t n = 0; n < size; ++n)
      for (std::int64_t v = 0; v < size; ++v)
        statistic += std::pow(counts[{n, v}] - expected, 2) / expected;
    const double degrees = static_cast<double>((size - 1) * (size - 1));
    EXPECT_LT(statistic, degrees + 6 * std::sqrt(2 * degrees)) << size;
  }
}

TEST(Permutation, EveryOrderOfFiveIsEquallyLikely) {
  const int trials = 24000, num_orders = 120;
  std::map<std::vector<std::int64_t>, int> counts;
  for (int seed = 0; seed < trials; ++seed)
    ++counts[order(5, static_cast<std::uint64_t>(seed), 0)];
  EXPECT_EQ(counts.size(), static_cast<std::size_t>(num_orders));
  const double expected = static_cast<double>(trials) / num_orders;
  double statistic = 0;
  for (const auto& [places, count] : counts)
    statistic += std::pow(count - expected, 2) / expected;
  EXPECT_LT(statistic, 119 + 6 * std::sqrt(2.0 * 119));
}

TEST(Permutation, NeighboursAreScattered) {
  const auto places = order(10000, 9, 0);
  int close = 0;
  for (std::size_t n = 0; n + 1 < places.size(); ++n)
    if (std::abs(places[n] - places[n + 1]) <= 10) ++close;
  EXPECT_NEAR(close, 20, 25);  // 10000 pairs, each with chance 20 / 10000
}

TEST(RandomStream, IsUniformBelowItsBoundAndFixed) {
  RandomStream random(5, 6);
  std::vector<int> counts(7);
  for (int n = 0; n < 70000; ++n)
    ++counts[static_cast<std::size_t>(random.below(7))];
  for (const int count : counts)
    EXPECT_NEAR(count, 10000, 500);
  EXPECT_EQ(RandomStream(5, 6).next(), 6059675739521578829u);
  EXPECT_EQ(RandomStream(5, 6).next(), RandomStream(5, 6).next());
  EXPECT_NE(RandomStream(5, 6).next(), RandomStream(6, 5).next());
}

// 2^64 is no multiple of this bound: taking the remainder alone would give 3/4 instead of 2/3.
TEST(RandomStream, LargeBoundsAreNotBiased) {
  const std::int64_t third = std::int64_t{1} << 61;
  RandomStream random(1, 2);
  int low = 0;
  for (int n = 0; n < 30000; ++n)
    if (random.below(3 * third) < 2 * third) ++low;
  EXPECT_NEAR(low, 20000, 500);
}

}  // namespace
}  // namespace sluice
