// The fit of what sequences cost.
#include "sluice/cost/sequence_fit.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice {
namespace {

std::vector<SequencePoint> points(double a1, double a2, double b1) {
  std::vector<SequencePoint> out;
  for (std::int64_t length = 256; length <= 8192; length *= 2)
    for (std::int64_t count = 1; count <= 16; count *= 4) {
      const auto s = static_cast<double>(length), n = static_cast<double>(count);
      out.push_back({length, count, n * (a1 * s * s + a2 * s) + b1});
    }
  return out;
}

TEST(SequenceFit, FindsTheTermsOfExactTimes) {
  const SequenceFit fit = fit_sequences(points(5e-9, 1.8e-4, 0.63));
  EXPECT_NEAR(fit.a1, 5e-9, 1e-14);
  EXPECT_NEAR(fit.a2, 1.8e-4, 1e-10);
  EXPECT_NEAR(fit.b1, 0.63, 1e-8);
  EXPECT_LT(fit.largest_error, 1e-9);
}

TEST(SequenceFit, NoTermIsNegative) {
  const SequenceFit fit = fit_sequences(points(5e-9, 1.8e-4, -0.01));
  EXPECT_GE(fit.a1, 0);
  EXPECT_GT(fit.a2, 0);
  EXPECT_EQ(fit.b1, 0);
  EXPECT_GT(fit.largest_error, 0);
  EXPECT_LE(fit.mean_error, fit.largest_error);
}

TEST(SequenceFit, LongerSequencesNeverCostNothing) {
  std::vector<SequencePoint> falling;
  for (std::int64_t length = 256; length <= 4096; length *= 2)
    falling.push_back({length, 1, 1 - static_cast<double>(length) * 1e-5});
  const SequenceFit fit = fit_sequences(falling);
  EXPECT_GT(fit.a1 + fit.a2, 0);
}

TEST(SequenceFit, SmallTimesCountAsMuchAsLargeOnes) {
  std::vector<SequencePoint> some = points(5e-9, 1.8e-4, 0.63);
  for (std::size_t n = 0; n < some.size(); ++n)
    some[n].seconds *= n % 2 == 0 ? 1.05 : 0.95;
  EXPECT_LT(fit_sequences(some).largest_error, 0.09);
}

TEST(SequenceFit, OnePointIsEnoughForAnAnswer) {
  const SequenceFit fit = fit_sequences(std::vector<SequencePoint>{{100, 2, 0.5}});
  EXPECT_GT(fit.a1 + fit.a2 + fit.b1, 0);
  EXPECT_LT(fit.largest_error, 1e-9);
}

}  // namespace
}  // namespace sluice
