// Token by token with kept keys and values against the whole sequence at once.
#include "sluice/model/decoder.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "sluice/model/stage.h"
#include "support/plans.h"

namespace sluice {
namespace {

ModelShape small(ModelFamily family) {
  ModelShape shape;
  shape.family = family;
  shape.layers = 3;
  shape.dim = 24;
  shape.heads = 4;
  shape.kv_heads = family == ModelFamily::llama ? 2 : 4;
  shape.ffn_dim = 40;
  shape.vocab_size = 37;
  shape.positions = family == ModelFamily::gpt2 ? 20 : 0;
  return shape;
}

class DecoderFamilies : public testing::TestWithParam<ModelFamily> {
 protected:
  DecoderFamilies() {
    at::set_num_threads(1);
    for (int n = 0; n < 20; ++n)
      tokens_.push_back(n * 31 % 37);
  }
  std::span<const std::int32_t> first(std::size_t count) const {
    return std::span(tokens_).first(count);
  }

  ModelShape shape_ = small(GetParam());
  std::vector<std::int32_t> tokens_;
};

// Larger than at the start of training, so that every part of the model shows in the logits.
template <typename Model>
void spread_weights(Model& model) {
  for (Parameter* parameter : model.parameters())
    if (parameter->value.dim() > 1) initialise_normal(parameter->value, 5, parameter->name, 0.3);
}

TEST_P(DecoderFamilies, TokenByTokenEqualsTheWholeSequence) {
  Decoder whole(shape_, at::kFloat), step(shape_, at::kFloat), pieces(shape_, at::kFloat);
  for (Decoder* decoder : {&whole, &step, &pieces})
    spread_weights(*decoder);
  for (std::size_t n = 1; n <= tokens_.size(); ++n) {
    whole.restart();
    const at::Tensor expected = whole.feed(first(n));
    const double norm = expected.norm().item<double>();
    EXPECT_GT(norm, 1);
    EXPECT_LE((step.feed(first(n).last(1)) - expected).norm().item<double>(), 1e-5 * norm) << n;
    EXPECT_EQ(step.length(), static_cast<std::int64_t>(n));
    if (n % 5 != 0) continue;
    EXPECT_LE((pieces.feed(first(n).last(5)) - expected).norm().item<double>(), 1e-5 * norm) << n;
  }
}

TEST_P(DecoderFamilies, GivesTheLossOfTraining) {
  const RunPlan plan = test::plan_of_stages(shape_, {shape_.layers}, {0, 20});
  Stage stage(plan, 0);
  Decoder decoder(shape_, at::kFloat);
  spread_weights(stage);
  spread_weights(decoder);
  Microbatch batch;
  batch.tokens = at::tensor(at::ArrayRef<std::int32_t>(tokens_)).to(at::kLong).view({1, 20});
  batch.targets = batch.tokens.roll(-1, 1);
  stage.begin_step(1);
  stage.evaluate(0, 0, batch, {});
  double loss = 0;
  for (std::size_t n = 0; n < tokens_.size(); ++n) {
    const at::Tensor logits = decoder.feed({&tokens_[n], 1});
    loss += (logits.logsumexp(0) - logits[tokens_[(n + 1) % tokens_.size()]]).item<double>();
  }
  EXPECT_NEAR(loss, stage.loss(), 1e-5 * loss);
}

TEST_P(DecoderFamilies, HoldsNoGradients) {
  Decoder decoder(shape_, at::kFloat);
  for (const Parameter* parameter : decoder.parameters()) {
    EXPECT_EQ(parameter->gradient.sizes(), parameter->value.sizes()) << parameter->name;
    EXPECT_EQ(parameter->gradient.storage().nbytes(), sizeof(float)) << parameter->name;
  }
}

INSTANTIATE_TEST_SUITE_P(Model, DecoderFamilies,
                         testing::Values(ModelFamily::gpt2, ModelFamily::llama),
                         [](const auto& family) {
                           return family.param == ModelFamily::gpt2 ? "gpt2" : "llama";
                         });

}  // namespace
}  // namespace sluice
