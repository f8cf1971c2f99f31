// Every gradient of the explicit layers against plain autograd, for both families, whole and cut
// into slices, with and without documents, at every recomputation level.
#include "model/stage.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "model/reference.h"

namespace sluice {
namespace {

ModelShape small(ModelFamily family) {
  ModelShape shape;
  shape.family = family;
  shape.layers = 2;
  shape.dim = 24;
  shape.heads = 4;
  shape.kv_heads = family == ModelFamily::llama ? 2 : 4;
  shape.ffn_dim = 40;
  shape.vocab_size = 37;
  shape.positions = family == ModelFamily::gpt2 ? 32 : 0;
  return shape;
}

Microbatch random_microbatch(const ModelShape& shape, std::int64_t sequences, std::int64_t length,
                             std::uint64_t seed, bool packed) {
  Microbatch batch;
  at::Tensor drawn = at::empty({sequences, length + 1}, at::kFloat);
  initialise_normal(drawn, seed, "tokens", 1000);
  const at::Tensor tokens = drawn.abs().to(at::kLong).remainder(shape.vocab_size);
  batch.tokens = tokens.slice(1, 0, length).contiguous();
  batch.targets = tokens.slice(1, 1, length + 1).clone();
  batch.targets.select(1, 3).fill_(-1);  // no loss there
  if (packed)
    for (std::int64_t s = 0; s < sequences; ++s)
      batch.documents.starts.push_back({0, 5 + s, 11});
  return batch;
}

struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

// One step through two stages by hand: all forwards, then all backwards.
Outcome run_step(const ModelShape& shape, const std::vector<Microbatch>& batches,
                 const SliceBounds& bounds, RecomputeLevel level, double scale,
                 std::map<std::string, at::Tensor>* weights = nullptr) {
  at::set_num_threads(1);
  Stage first({.shape = shape,
               .first_layer = 0,
               .end_layer = 1,
               .embedding = true,
               .level = level,
               .seed = 7});
  Stage second(
      {.shape = shape, .first_layer = 1, .end_layer = 2, .head = true, .level = level, .seed = 7});
  first.begin_step(bounds, scale);
  second.begin_step(bounds, scale);
  const int slices = static_cast<int>(bounds.size()) - 1;
  for (std::size_t m = 0; m < batches.size(); ++m)
    for (int c = 0; c < slices; ++c)
      second.forward(static_cast<int>(m), c, batches[m],
                     first.forward(static_cast<int>(m), c, batches[m], {}));
  for (std::size_t m = 0; m < batches.size(); ++m)
    for (int c = slices - 1; c >= 0; --c) {
      first.input_grad(static_cast<int>(m), c, second.input_grad(static_cast<int>(m), c, {}));
      second.weight_grad(static_cast<int>(m), c);
      first.weight_grad(static_cast<int>(m), c);
    }
  EXPECT_EQ(first.stash_bytes(), 0);
  EXPECT_EQ(second.stash_bytes(), 0);
  Outcome outcome;
  outcome.loss = second.loss();
  for (Stage* stage : {&first, &second})
    for (const Parameter* parameter : stage->parameters()) {
      outcome.gradients[parameter->name] = parameter->gradient.clone();
      if (weights) (*weights)[parameter->name] = parameter->value;
    }
  return outcome;
}

void expect_close(const std::map<std::string, at::Tensor>& actual,
                  const std::map<std::string, at::Tensor>& expected, double tolerance,
                  const ModelShape& shape) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, wanted] : expected) {
    at::Tensor error = actual.at(name) - wanted;
    // The gradient of a key bias is zero in exact arithmetic: judge it by the whole qkv bias.
    const double norm = wanted.norm().item<double>();
    EXPECT_LE(error.norm().item<double>(), tolerance * norm + 1e-12)
        << name << " of norm " << norm << ", dim " << shape.dim;
    EXPECT_GT(norm, 0) << name;
  }
}

class Families : public testing::TestWithParam<ModelFamily> {};

TEST_P(Families, GradientsEqualAutograd) {
  const ModelShape shape = small(GetParam());
  for (const bool packed : {false, true})
    for (const SliceBounds& bounds :
         {SliceBounds{0, 16}, SliceBounds{0, 8, 16}, SliceBounds{0, 7, 12, 16}}) {
      SCOPED_TRACE(testing::Message() << bounds.size() - 1 << " slices, packed " << packed);
      const std::vector<Microbatch> batches = {random_microbatch(shape, 2, 16, 1, packed),
                                               random_microbatch(shape, 2, 16, 2, packed)};
      std::map<std::string, at::Tensor> weights;
      const Outcome ours =
          run_step(shape, batches, bounds, RecomputeLevel::none, 1.0 / 60, &weights);
      const test::ReferenceResult reference =
          test::reference_step(shape, weights, batches, 1.0 / 60);
      EXPECT_NEAR(ours.loss, reference.loss, 1e-6 * reference.loss);
      expect_close(ours.gradients, reference.gradients, 1e-5, shape);
    }
}

TEST_P(Families, RecomputationChangesNoBit) {
  const ModelShape shape = small(GetParam());
  const std::vector<Microbatch> batches = {random_microbatch(shape, 2, 16, 1, false)};
  for (const SliceBounds& bounds : {SliceBounds{0, 16}, SliceBounds{0, 7, 12, 16}}) {
    const Outcome plain = run_step(shape, batches, bounds, RecomputeLevel::none, 1.0 / 30);
    for (const RecomputeLevel level : {RecomputeLevel::elementwise, RecomputeLevel::mlp,
                                       RecomputeLevel::all_but_attention, RecomputeLevel::full}) {
      const Outcome again = run_step(shape, batches, bounds, level, 1.0 / 30);
      EXPECT_EQ(plain.loss, again.loss);
      for (const auto& [name, gradient] : plain.gradients)
        EXPECT_TRUE(at::equal(gradient, again.gradients.at(name)))
            << name << " at level " << static_cast<int>(level);
    }
  }
}

TEST_P(Families, EvaluationGivesTheSameLoss) {
  const ModelShape shape = small(GetParam());
  const Microbatch batch = random_microbatch(shape, 2, 16, 3, true);
  Stage whole({.shape = shape, .end_layer = 2, .embedding = true, .head = true, .seed = 7});
  whole.begin_step({0, 16}, 1);
  whole.forward(0, 0, batch, {});
  const double trained = whole.loss();
  whole.input_grad(0, 0, {});
  whole.weight_grad(0, 0);
  whole.begin_step({0, 16}, 1);
  whole.evaluate(0, 0, batch, {});
  EXPECT_EQ(whole.loss(), trained);
  whole.begin_step({0, 7, 16}, 1);
  whole.evaluate(0, 0, batch, {});
  whole.evaluate(0, 1, batch, {});
  EXPECT_NEAR(whole.loss(), trained, 1e-5 * trained);
}

INSTANTIATE_TEST_SUITE_P(Model, Families, testing::Values(ModelFamily::gpt2, ModelFamily::llama),
                         [](const auto& family) {
                           return family.param == ModelFamily::gpt2 ? "gpt2" : "llama";
                         });

// Finite differences on a tiny case, so that the reference itself is checked.
TEST(Stage, GradientsEqualFiniteDifferences) {
  ModelShape shape = small(ModelFamily::gpt2);
  const std::vector<Microbatch> batches = {random_microbatch(shape, 1, 8, 5, false)};
  std::map<std::string, at::Tensor> weights;
  const Outcome ours = run_step(shape, batches, {0, 4, 8}, RecomputeLevel::none, 1, &weights);
  for (const char* name : {"layers.0.mlp.up.weight", "layers.1.attention.qkv.weight",
                           "embedding.weight", "norm.weight"}) {
    const at::Tensor flat = ours.gradients.at(name).reshape({-1});
    const std::int64_t entry = flat.abs().argmax().item<std::int64_t>();
    const double step = 1e-2;
    std::vector<double> losses;
    for (const double sign : {1.0, -1.0}) {
      auto moved = weights;
      moved[name] = weights[name].clone();
      moved[name].view({-1})[entry] += sign * step;
      losses.push_back(test::reference_step(shape, moved, batches, 1).loss);
    }
    const double slope = (losses[0] - losses[1]) / (2 * step);
    EXPECT_NEAR(flat[entry].item<double>(), slope, 2e-2 * std::abs(slope)) << name;
  }
}

}  // namespace
}  // namespace sluice
