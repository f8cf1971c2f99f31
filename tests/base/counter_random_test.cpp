#include "sluice/base/counter_random.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace sluice {
namespace {

std::uint16_t rounded(float number, std::uint64_t random) {
  return round_stochastic(std::bit_cast<std::uint32_t>(number), random);
}
float widened(std::uint16_t number) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(number) << 16);
}

TEST(CounterRandom, IsSplitMix64) {
  // The generator's first three numbers from state 0, of which mix() adds the step itself.
  EXPECT_EQ(mix(0), 0xe220a8397b1dcdafU);
  EXPECT_EQ(mix(0x9e3779b97f4a7c15U), 0x6e789e6aa1b965f4U);
  EXPECT_EQ(mix(2 * 0x9e3779b97f4a7c15U), 0x06c45d188009454fU);
}

TEST(CounterRandom, APartOfAWeightDrawsWhatTheWholeDoes) {
  EXPECT_EQ(random_bits(7, 130), random_bits(7 + 100, 30));
  EXPECT_NE(random_bits(7, 130), random_bits(8, 130));
}

TEST(CounterRandom, RoundingGoesUpAsOftenAsTheRestIsLarge) {
  for (const float number : {1.0009765625F, -3.14159F, 1e-30F, 1e-41F, 65535.5F}) {
    double sum = 0;
    for (std::uint64_t random = 0; random < 0x10000; ++random)
      sum += widened(rounded(number, random));
    EXPECT_EQ(sum / 0x10000, static_cast<double>(number)) << number;
  }
}

TEST(CounterRandom, RoundingLeavesWhatIsNarrowInfiniteOrNoNumber) {
  for (const std::uint64_t random : {0x0U, 0x8000U, 0xffffU}) {
    for (const float number : {0.0F, -0.0F, 1.0F, -1.5F, HUGE_VALF, -HUGE_VALF})
      EXPECT_EQ(std::bit_cast<std::uint32_t>(widened(rounded(number, random))),
                std::bit_cast<std::uint32_t>(number));
    // Even where all that tells it from infinity is cut off.
    const float none = widened(round_stochastic(0x7f800001, random));
    EXPECT_NE(none, none);
  }
}

}  // namespace
}  // namespace sluice
