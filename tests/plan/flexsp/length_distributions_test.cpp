#include "sluice/plan/flexsp/length_distributions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "sluice/base/error.h"

namespace sluice::flexsp {
namespace {

constexpr std::int64_t kNoLimit = 1'000'000'000'000;

double mean(const std::vector<std::int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), 0.0) / static_cast<double>(lengths.size());
}
double share_up_to(const std::vector<std::int64_t>& lengths, std::int64_t limit) {
  return static_cast<double>(std::count_if(lengths.begin(), lengths.end(),
                                           [&](std::int64_t n) { return n <= limit; })) /
         static_cast<double>(lengths.size());
}

// The same on every machine: a change here changes everybody's batches.
TEST(LengthDistributions, TheFirstDrawsAreThese) {
  const auto first = [](LengthDistribution distribution, std::uint64_t seed) {
    return draw_lengths(distribution, 6, seed, kNoLimit).lengths;
  };
  using L = std::vector<std::int64_t>;
  EXPECT_EQ(first(LengthDistribution::wikipedia, 0), (L{561, 109, 359, 6215, 220, 66}));
  EXPECT_EQ(first(LengthDistribution::wikipedia, 1), (L{219, 380, 812, 663, 1681, 305}));
  EXPECT_EQ(first(LengthDistribution::commoncrawl_like, 0), (L{1954, 789, 7222, 1652, 917, 1585}));
  EXPECT_EQ(first(LengthDistribution::github_like, 0), (L{1421, 514, 6143, 1177, 609, 1124}));
}

TEST(LengthDistributions, WikipediaHasTheMeasuredMoments) {
  const auto lengths = draw_lengths(LengthDistribution::wikipedia, 400'000, 7, kNoLimit).lengths;
  EXPECT_NEAR(mean(lengths), 1013.65 * 1.007, 25);
  for (const auto& [limit, share] : {std::pair{256, .416},
                                     {512, .627},
                                     {1024, .788},
                                     {2048, .896},
                                     {4096, .956},
                                     {8192, .984},
                                     {16384, .9952},
                                     {32768, .9987}})
    EXPECT_NEAR(share_up_to(lengths, limit), share, 0.003) << limit;
  EXPECT_GE(*std::min_element(lengths.begin(), lengths.end()), 1);
  EXPECT_LE(*std::max_element(lengths.begin(), lengths.end()), 1'823'777);
}

TEST(LengthDistributions, TheMixturesHaveTheirSharesOfLongSequences) {
  const auto crawl =
      draw_lengths(LengthDistribution::commoncrawl_like, 400'000, 7, 384 * 1024).lengths;
  EXPECT_NEAR(share_up_to(crawl, 8192), 0.926, 0.003);
  EXPECT_NEAR(1 - share_up_to(crawl, 32768), 0.010, 0.002);
  const auto github = draw_lengths(LengthDistribution::github_like, 400'000, 7, 384 * 1024).lengths;
  EXPECT_NEAR(1 - share_up_to(github, 32768), 0.016, 0.003);
  EXPECT_NEAR(1 - share_up_to(github, 128 * 1024), 0.003, 0.001);
}

TEST(LengthDistributions, LongerDrawsAreCountedAndDrawnAgain) {
  const auto distribution = LengthDistribution::github_like;
  const DrawnLengths all = draw_lengths(distribution, 2'000, 3, kNoLimit);
  EXPECT_EQ(all.dropped, 0);
  const DrawnLengths some = draw_lengths(distribution, 1'000, 3, 4096);
  ASSERT_EQ(some.lengths.size(), 1'000u);
  EXPECT_GT(some.dropped, 50);
  // The same draws without the long ones.
  std::vector<std::int64_t> kept;
  for (const std::int64_t length : all.lengths)
    if (length <= 4096 && kept.size() < 1'000) kept.push_back(length);
  EXPECT_EQ(some.lengths, kept);
}

TEST(LengthDistributions, NeighbouringSeedsShareNoDraws) {
  const auto a = draw_lengths(LengthDistribution::wikipedia, 1'000, 0, kNoLimit).lengths;
  const auto b = draw_lengths(LengthDistribution::wikipedia, 1'000, 1, kNoLimit).lengths;
  EXPECT_FALSE(std::equal(a.begin() + 1, a.begin() + 9, b.begin()));
  EXPECT_FALSE(std::equal(b.begin() + 1, b.begin() + 9, a.begin()));
}

TEST(LengthDistributions, ALimitThatHardlyAnyDrawMeetsIsRefused) {
  try {
    draw_lengths(LengthDistribution::commoncrawl_like, 10, 0, 1);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("`max_length` is 1: of 20000 draws"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace sluice::flexsp
