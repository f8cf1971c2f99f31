#include "sluice/plan/flexsp/buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "plan/flexsp/batches.h"
#include "sluice/plan/flexsp/cuts.h"

namespace sluice::flexsp {
namespace {

using Lengths = std::vector<std::int64_t>;

const Lengths kEight = {2100, 100, 500, 120, 900, 130, 510, 2000};

TEST(FlexspBuckets, TheBestLimitsAreFound) {
  const Buckets three = best_buckets(kEight, 3);
  EXPECT_EQ(three.limits, (Lengths{130, 900, 2100}));
  EXPECT_EQ(three.error, 930);
  const Buckets four = best_buckets(kEight, 4);
  EXPECT_EQ(four.limits, (Lengths{130, 510, 900, 2100}));
  EXPECT_EQ(four.error, 150);
  EXPECT_EQ(best_buckets(test::kFifteen, 8).error, 4480);
}

TEST(FlexspBuckets, EnoughBucketsHaveNoError) {
  EXPECT_EQ(best_buckets(kEight, 8).error, 0);
  EXPECT_EQ(best_buckets(kEight, 100).limits, no_buckets(kEight).limits);
  EXPECT_EQ(best_buckets(Lengths{5, 5, 5}, 16).limits, (Lengths{5}));
  EXPECT_EQ(best_buckets(Lengths{5, 7, 5}, 1).limits, (Lengths{7}));
  EXPECT_EQ(best_buckets(Lengths{5, 7, 5}, 1).error, 4);
}

// The least error over every choice of limits.
std::int64_t least_error(const Lengths& lengths, int count) {
  const Lengths limits = no_buckets(lengths).limits;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (unsigned chosen = 0; chosen < 1u << limits.size(); ++chosen) {
    Buckets some;
    for (std::size_t i = 0; i < limits.size(); ++i)
      if (chosen >> i & 1) some.limits.push_back(limits[i]);
    if (static_cast<int>(some.limits.size()) > count || some.limits.empty() ||
        some.limits.back() != limits.back())
      continue;
    std::int64_t error = 0;
    const Lengths rounded = rounded_up(lengths, some);
    for (std::size_t i = 0; i < lengths.size(); ++i)
      error += rounded[i] - lengths[i];
    least = std::min(least, error);
  }
  return least;
}

TEST(FlexspBuckets, NoOtherLimitsAreBetter) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 60; ++round) {
    Lengths lengths(static_cast<std::size_t>(test::between(random, 1, 14)));
    for (std::int64_t& length : lengths)
      length = test::between(random, 1, round % 2 ? 12 : 5000);
    for (int count = 1; count <= 5; ++count)
      EXPECT_EQ(best_buckets(lengths, count).error, least_error(lengths, count))
          << "round " << round << ", " << count << " buckets";
  }
}

TEST(FlexspBuckets, FixedOnesEndAtMultiplesOfTheirWidth) {
  const Buckets fixed = fixed_buckets(Lengths{1, 2048, 2049, 9000, 9001}, 2048);
  EXPECT_EQ(fixed.limits, (Lengths{2048, 4096, 9001}));
  EXPECT_EQ(fixed.error, 2047 + 2047 + 1);
  EXPECT_EQ(fixed.of(2048), 0u);
  EXPECT_EQ(fixed.of(2049), 1u);
  EXPECT_EQ(rounded_up(Lengths{9000, 7}, fixed), (Lengths{9001, 2048}));
}

// In microbatches, as batches are cut. Published of web text: 0.5 % of the tokens with 16 buckets.
TEST(FlexspBuckets, SixteenChosenOnesAreNearerThanFixedOnes) {
  Lengths lengths = test::batch_of(test::kCommonCrawlLike, 512, 192 * 1024, 0);
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  const auto tokens = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), 0LL));
  std::int64_t chosen = 0, fixed = 0;
  std::size_t first = 0;
  const std::vector<Cuts> cuts = cut_by_tokens(lengths, 5);
  for (const std::size_t last : cuts.back()) {
    const auto own = std::span(lengths).subspan(first, last - first);
    chosen += best_buckets(own, 16).error;
    fixed += fixed_buckets(own, 2048).error;
    EXPECT_EQ(no_buckets(own).error, 0);
    first = last;
  }
  EXPECT_LT(static_cast<double>(chosen), 0.01 * tokens);
  EXPECT_GT(static_cast<double>(fixed), 0.05 * tokens);
}

// Of the cuts of {9, 7, 6, 5, 4, 3, 2}, which are longest first.
TEST(FlexspCuts, TheLargestMicrobatchIsAsSmallAsItCanBe) {
  const Lengths lengths = {9, 7, 6, 5, 4, 3, 2};
  const std::vector<Cuts> cuts = cut_by_tokens(lengths, 9);
  ASSERT_EQ(cuts.size(), 7u);
  const std::int64_t expected[] = {36, 20, 14, 11, 9, 9, 9};
  for (std::size_t m = 0; m < cuts.size(); ++m) {
    ASSERT_EQ(cuts[m].size(), m + 1);
    EXPECT_EQ(cuts[m].back(), lengths.size());
    std::int64_t largest = 0;
    std::size_t first = 0;
    for (const std::size_t last : cuts[m]) {
      ASSERT_LT(first, last);
      std::int64_t tokens = 0;
      for (; first < last; ++first)
        tokens += lengths[first];
      largest = std::max(largest, tokens);
    }
    EXPECT_EQ(largest, expected[m]) << m + 1 << " microbatches";
  }
}

}  // namespace
}  // namespace sluice::flexsp
