// FLOPs by hand: what training, the planner and the benchmarks count.
#include "sluice/cost/flops.h"

#include <gtest/gtest.h>

#include "sluice/cost/parameters.h"
#include "sluice/cost/slices.h"

namespace sluice {
namespace {

ModelShape small(ModelFamily family) {
  return {.family = family,
          .layers = 3,
          .dim = 8,
          .heads = 2,
          .kv_heads = family == ModelFamily::llama ? 1 : 2,
          .ffn_dim = 20,
          .vocab_size = 50,
          .positions = 16};
}

TEST(Flops, AStepIsSixPerWeightAndAttentionByHalf) {
  // q 8x8, k and v 4x8 each, out 8x8, gate, up and down 20x8 each; the head 50x8.
  const double weights = 3 * (64 + 2 * 32 + 64 + 3 * 160) + 400;
  EXPECT_EQ(step_flops(small(ModelFamily::llama), 32, 0), 6 * weights * 32);
  // Two sequences of 16: each of 3 layers has two matmuls over 16 x 16 / 2 pairs, 8 wide.
  EXPECT_EQ(step_flops(small(ModelFamily::llama), 32, 2 * 16 * 16) - 6 * weights * 32,
            3 * 3 * (2 * 2 * 8) * (2 * 16 * 16 / 2));
}

TEST(Flops, AnEncoderAttendsToEverything) {
  const auto attention = [](ModelFamily family) {
    return step_flops(small(family), 32, 2 * 16 * 16) - step_flops(small(family), 32, 0);
  };
  EXPECT_EQ(attention(ModelFamily::bert), 2 * attention(ModelFamily::gpt2));
}

TEST(Flops, PackedDocumentsCountByTheirLengths) {
  const ModelShape shape = small(ModelFamily::gpt2);
  const auto attention = [&](double squares) {
    return step_flops(shape, 16, squares) - step_flops(shape, 16, 0);
  };
  EXPECT_EQ(attention(4 * 4 * 4), attention(16 * 16) / 4);  // four documents of 4 tokens
}

// The planner adds what is computed again: in attention's backward, by the head, and on request.
TEST(Flops, ThePlannerStartsFromTheSameCount) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama, ModelFamily::bert}) {
    const ModelShape shape = small(family);
    const LayerFlops layer = layer_flops(shape, 16);
    const HeadFlops head = head_flops(shape);
    const double planned = 3 * block_work(shape, RecomputeLevel::none, 16) + head_work(shape);
    EXPECT_EQ(planned - 3 * 0.5 * layer.attention - head.logits, step_flops(shape, 1, 16));
    EXPECT_EQ(
        block_work(shape, RecomputeLevel::full, 16) - block_work(shape, RecomputeLevel::none, 16),
        layer.qkv + layer.out + layer.up + layer.attention +
            (family == ModelFamily::bert ? layer.down : 0));
  }
}

TEST(Flops, PeaksOfKnownGpus) {
  EXPECT_EQ(known_peak_tflops("NVIDIA H200", NumberType::bfloat16), 989);
  EXPECT_EQ(known_peak_tflops("NVIDIA GH200 480GB", NumberType::bfloat16), 989);
  EXPECT_EQ(known_peak_tflops("NVIDIA H200", NumberType::float32), 67);
  EXPECT_EQ(known_peak_tflops("NVIDIA H100 80GB HBM3", NumberType::bfloat16), 989);
  EXPECT_EQ(known_peak_tflops("NVIDIA H100 PCIe", NumberType::bfloat16), 756);
  EXPECT_EQ(known_peak_tflops("NVIDIA A100-SXM4-80GB", NumberType::bfloat16), 312);
  EXPECT_EQ(known_peak_tflops("NVIDIA H20", NumberType::bfloat16), 148);
  EXPECT_EQ(known_peak_tflops("NVIDIA GB200", NumberType::bfloat16), 2500);
  EXPECT_EQ(known_peak_tflops("NVIDIA A100-SXM4-40GB MIG 1g.5gb", NumberType::bfloat16), 0);
  EXPECT_EQ(known_peak_tflops("Some GPU", NumberType::bfloat16), 0);
}

TEST(Parameters, ASharedWeightCountsOnce) {
  ModelShape shape = small(ModelFamily::llama);
  // Norms: two of 8 in each of 3 layers, and the last.
  const std::int64_t weights = 2 * 50 * 8 + 3 * (64 + 2 * 32 + 64 + 3 * 160 + 2 * 8) + 8;
  EXPECT_EQ(num_parameters(shape), weights);
  shape.tied_embeddings = true;
  EXPECT_EQ(num_parameters(shape), weights - 50 * 8);
}

}  // namespace
}  // namespace sluice
