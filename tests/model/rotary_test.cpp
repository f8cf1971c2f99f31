// The rotary frequencies, which must be those of transformers to the last bit.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "sluice/model/functions.h"

namespace sluice {
namespace {

ModelShape heads_of(std::int64_t head_dim, double theta) {
  ModelShape shape;
  shape.family = ModelFamily::llama;
  shape.heads = shape.kv_heads = 1;
  shape.dim = head_dim;
  shape.rope_theta = theta;
  return shape;
}

TEST(RotaryFrequencies, AreTheReciprocalsOfPowersInSinglePrecision) {
  for (const auto& [dim, theta] : {std::pair(128, 500000.0), std::pair(64, 10000.0),
                                   std::pair(48, 10000.0), std::pair(6, 1e6)}) {
    const at::Tensor exponents = at::arange(0, dim, 2, at::kFloat) / static_cast<double>(dim);
    const at::Tensor expected = at::reciprocal(at::pow(theta, exponents));
    EXPECT_TRUE(at::equal(rotary_frequencies(heads_of(dim, theta)), expected)) << dim;
  }
}

// By transformers 5.22.2 and torch 2.11.0: Llama 3.2's numbers (head_dim 64).
TEST(RotaryFrequencies, OfLlama3AreStretchedWhereTheyAreLow) {
  ModelShape shape = heads_of(64, 500000);
  shape.rope_scaling = {
      .factor = 32, .low_freq_factor = 1, .high_freq_factor = 4, .original_positions = 8192};
  const at::Tensor frequencies = rotary_frequencies(shape);
  ASSERT_EQ(frequencies.numel(), 32);
  const std::vector<std::pair<int, double>> expected = {
      {0, 1},
      {1, 0.663601279},
      {8, 0.0376060307},
      {14, 0.00321144611},
      {15, 0.00129054801},  // the gradual part
      {16, 0.000429556705},
      {17, 9.70828623e-05},
      {18, 1.94616387e-05},  // 1 / 32
      {19, 1.29147675e-05},
      {31, 9.41830649e-08},
  };
  for (const auto& [pair, value] : expected)
    EXPECT_NEAR(frequencies[pair].item<float>() / value, 1, 2e-7) << pair;
  const at::Tensor plain = rotary_frequencies(heads_of(64, 500000));
  int same = 0, stretched = 0;
  for (int pair = 0; pair < 32; ++pair) {
    const double ratio = plain[pair].item<double>() / frequencies[pair].item<double>();
    same += ratio == 1;
    stretched += ratio == 32;
    EXPECT_TRUE(ratio >= 1 && ratio <= 32) << pair;
  }
  EXPECT_EQ(same, 15);
  EXPECT_EQ(stretched, 14);
}

}  // namespace
}  // namespace sluice
