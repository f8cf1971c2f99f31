// Every gradient of the explicit layers against plain autograd, for all families, whole and cut
// into slices, with and without documents, at every recomputation level.
#include "sluice/model/stage.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "model/reference.h"
#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/cost/parameters.h"
#include "sluice/run/stash.h"
#include "support/gradients.h"
#include "support/plans.h"

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
  shape.positions = family == ModelFamily::llama ? 0 : 32;
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

struct StepOptions {
  SliceBounds bounds = {0, 16};
  RecomputeLevel level = RecomputeLevel::none;
  double scale = 1.0 / 60;
  std::vector<std::int64_t> layers_per_stage = {1, 1};
  NumberType dtype = NumberType::float32;
};

constexpr std::int64_t kSeed = 7;

// The whole model as one stage, for two sequences of 16 tokens.
RunPlan plan_of_one_stage(const ModelShape& shape) {
  RunPlan plan = test::plan_of_stages(shape, {shape.layers}, {0, 16}, 2);
  plan.config.debug.seed = kSeed;
  return plan;
}

// One step through the stages by hand: all forwards, then all backwards.
Outcome run_step(const ModelShape& shape, std::vector<Microbatch> batches,
                 const StepOptions& options, std::map<std::string, at::Tensor>* weights = nullptr) {
  at::set_num_threads(1);
  RunPlan plan = test::plan_of_stages(shape, options.layers_per_stage, options.bounds,
                                      batches.front().tokens.size(0));
  plan.config.recompute.level = options.level;
  plan.config.training.dtype = options.dtype;
  plan.config.debug.seed = kSeed;
  std::vector<std::unique_ptr<Stage>> stages;
  for (int number = 0; number < std::ssize(options.layers_per_stage); ++number) {
    stages.push_back(std::make_unique<Stage>(plan, number));
    stages.back()->begin_step(options.scale);
  }
  if (options.bounds.size() > 2)
    for (Microbatch& batch : batches)
      batch.bounds = options.bounds;
  const int slices = static_cast<int>(options.bounds.size()) - 1;
  std::map<std::pair<int, int>, at::Tensor> turned;  // by the loss, of each microbatch and slice
  for (int m = 0; m < static_cast<int>(batches.size()); ++m)
    for (int c = 0; c < slices; ++c) {
      at::Tensor& x = turned[{m, c}];
      for (const auto& stage : stages)
        x = stage->forward(m, c, batches[static_cast<std::size_t>(m)], x);
    }
  for (int m = 0; m < static_cast<int>(batches.size()); ++m)
    for (int c = slices - 1; c >= 0; --c) {
      at::Tensor gradient = turned.at({m, c});
      for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
        gradient = (*stage)->input_grad(m, c, gradient);
      for (const auto& stage : stages)
        stage->weight_grad(m, c);
    }
  Outcome outcome;
  outcome.loss = stages.back()->loss();
  for (const auto& stage : stages) {
    EXPECT_EQ(stage->stash_bytes(), 0);
    for (const Parameter* parameter : stage->parameters()) {
      outcome.gradients[parameter->name] = parameter->gradient.clone();
      if (weights) (*weights)[parameter->name] = parameter->value;
    }
  }
  return outcome;
}

class Families : public testing::TestWithParam<ModelFamily> {};

std::vector<SliceBounds> cuts(ModelFamily family) {
  if (family == ModelFamily::bert) return {{0, 16}};
  return {{0, 16}, {0, 8, 16}, {0, 7, 12, 16}, {0, 5, 11, 16}};
}

TEST_P(Families, GradientsEqualAutograd) {
  ModelShape shape = small(GetParam());
  for (const bool packed : {false, true})
    for (const bool tied : {false, true})
      for (const SliceBounds& bounds : cuts(GetParam())) {
        SCOPED_TRACE(testing::Message() << bounds.size() - 1 << " slices, packed " << packed);
        shape.tied_embeddings = tied;
        const std::vector<Microbatch> batches = {random_microbatch(shape, 2, 16, 1, packed),
                                                 random_microbatch(shape, 2, 16, 2, packed)};
        std::map<std::string, at::Tensor> weights;
        const Outcome ours = run_step(shape, batches, {.bounds = bounds}, &weights);
        EXPECT_EQ(at::equal(weights.at("embedding.weight"), weights.at("head.weight")), tied);
        const test::ReferenceResult reference =
            test::reference_step(shape, weights, batches, 1.0 / 60);
        EXPECT_NEAR(ours.loss, reference.loss, 1e-6 * reference.loss);
        test::expect_close_gradients(ours.gradients, reference.gradients, 1e-5);
      }
}

TEST_P(Families, MicrobatchesOfAStepMayDiffer) {
  const ModelShape shape = small(GetParam());
  const std::vector<Microbatch> batches = {
      random_microbatch(shape, 2, 16, 1, false), random_microbatch(shape, 1, 29, 2, true),
      random_microbatch(shape, 3, 7, 3, false), random_microbatch(shape, 2, 16, 4, true)};
  std::map<std::string, at::Tensor> weights;
  const Outcome ours = run_step(shape, batches, {}, &weights);
  const test::ReferenceResult reference = test::reference_step(shape, weights, batches, 1.0 / 60);
  EXPECT_NEAR(ours.loss, reference.loss, 1e-6 * reference.loss);
  test::expect_close_gradients(ours.gradients, reference.gradients, 1e-5);
}

// A document that starts with a slice, in the only sequence: its slice attends to itself alone.
TEST(Stage, ADocumentMayStartWithASlice) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama}) {
    const ModelShape shape = small(family);
    Microbatch batch = random_microbatch(shape, 1, 16, 4, false);
    batch.documents.starts = {{0, 8}};
    std::map<std::string, at::Tensor> weights;
    const Outcome ours = run_step(shape, {batch}, {.bounds = {0, 8, 16}}, &weights);
    const auto reference = test::reference_step(shape, weights, {batch}, 1.0 / 60);
    EXPECT_NEAR(ours.loss, reference.loss, 1e-6 * reference.loss);
    test::expect_close_gradients(ours.gradients, reference.gradients, 1e-5);
  }
}

TEST_P(Families, RecomputationChangesNoBit) {
  const ModelShape shape = small(GetParam());
  const std::vector<Microbatch> batches = {random_microbatch(shape, 2, 16, 1, false)};
  for (const SliceBounds& bounds : cuts(GetParam())) {
    const Outcome plain = run_step(shape, batches, {.bounds = bounds});
    for (const RecomputeLevel level : {RecomputeLevel::elementwise, RecomputeLevel::mlp,
                                       RecomputeLevel::all_but_attention, RecomputeLevel::full}) {
      const Outcome again = run_step(shape, batches, {.bounds = bounds, .level = level});
      EXPECT_EQ(plain.loss, again.loss);
      for (const auto& [name, gradient] : plain.gradients)
        EXPECT_TRUE(at::equal(gradient, again.gradients.at(name)))
            << name << " at level " << name_of(level);
    }
  }
}

TEST_P(Families, ParametersAreTheListOfCost) {
  const ModelShape shape = small(GetParam());
  const RunPlan apart = test::plan_of_stages(shape, {0, 2, 0}, {0, 16});
  const RunPlan whole = test::plan_of_stages(shape, {2}, {0, 16});
  for (const auto& [plan, number] :
       {std::pair(&apart, 0), std::pair(&apart, 1), std::pair(&apart, 2), std::pair(&whole, 0)}) {
    Stage stage(*plan, number);
    const std::vector<ParameterShape> listed = stage_parameters(shape, plan->layers_of(number));
    const std::vector<Parameter*> held = stage.parameters();
    ASSERT_EQ(held.size(), listed.size());
    for (std::size_t n = 0; n < held.size(); ++n) {
      EXPECT_EQ(held[n]->name, listed[n].name);
      EXPECT_EQ(held[n]->value.sizes().vec(), listed[n].shape) << listed[n].name;
    }
  }
}

TEST_P(Families, EmbeddingAndHeadMayStandAlone) {
  const ModelShape shape = small(GetParam());
  const std::vector<Microbatch> batches = {random_microbatch(shape, 2, 16, 1, true),
                                           random_microbatch(shape, 2, 16, 2, true)};
  const Outcome shared = run_step(shape, batches, {});
  const Outcome alone = run_step(shape, batches, {.layers_per_stage = {0, 1, 1, 0}});
  EXPECT_EQ(shared.loss, alone.loss);
  ASSERT_EQ(shared.gradients.size(), alone.gradients.size());
  for (const auto& [name, gradient] : shared.gradients)
    EXPECT_TRUE(at::equal(gradient, alone.gradients.at(name))) << name;
}

// The same weights to bf16's digits; sums over microbatches and masters are fp32.
TEST_P(Families, Bfloat16GradientsAreCloseToFp32Ones) {
  const ModelShape shape = small(GetParam());
  std::vector<Microbatch> batches;
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    batches.push_back(random_microbatch(shape, 2, 16, seed, false));
  const Outcome wide = run_step(shape, batches, {});
  const Outcome narrow = run_step(shape, batches, {.dtype = NumberType::bfloat16});
  EXPECT_NEAR(narrow.loss, wide.loss, 5e-3 * wide.loss);
  double error = 0, norm = 0;
  for (const auto& [name, gradient] : wide.gradients) {
    EXPECT_EQ(narrow.gradients.at(name).scalar_type(), at::kFloat) << name;
    error += (narrow.gradients.at(name) - gradient).square().sum().item<double>();
    norm += gradient.square().sum().item<double>();
  }
  RecordProperty("relative_error", std::to_string(std::sqrt(error / norm)));
  EXPECT_LE(std::sqrt(error / norm), 1.5e-2);
}

TEST_P(Families, AStashCountsWhatAFailedForwardHasLeft) {
  const ModelShape shape = small(GetParam());
  Microbatch batch = random_microbatch(shape, 2, 16, 3, true);
  batch.targets = batch.targets.slice(0, 0, 1);  // too few, which the head finds out
  const RunPlan plan = plan_of_one_stage(shape);
  Stage stage(plan, 0);
  stage.begin_step(1);
  EXPECT_THROW(stage.forward(0, 0, batch, {}), c10::Error);
  EXPECT_EQ(stage.stash_bytes(), 2 * block_stash(plan, 32).after_f);
  stage.drop_microbatches();
  EXPECT_EQ(stage.stash_bytes(), 0);
}

TEST_P(Families, EvaluationGivesTheSameLoss) {
  const ModelShape shape = small(GetParam());
  Microbatch batch = random_microbatch(shape, 2, 16, 3, true);
  const RunPlan plan = plan_of_one_stage(shape);
  Stage whole(plan, 0);
  whole.begin_step(1);
  const at::Tensor gradient = whole.forward(0, 0, batch, {});
  const double trained = whole.loss();
  whole.input_grad(0, 0, gradient);
  whole.weight_grad(0, 0);
  whole.begin_step(1);
  whole.evaluate(0, 0, batch, {});
  EXPECT_EQ(whole.loss(), trained);
  whole.begin_step(1);
  batch.bounds = {0, 7, 16};
  if (GetParam() == ModelFamily::bert) {
    EXPECT_THROW(whole.evaluate(0, 0, batch, {}), UserError);
    return;
  }
  whole.evaluate(0, 0, batch, {});
  whole.evaluate(0, 1, batch, {});
  EXPECT_NEAR(whole.loss(), trained, 1e-5 * trained);
}

// Finite differences on a tiny case, so that the reference itself is checked.
TEST_P(Families, GradientsEqualFiniteDifferences) {
  const ModelShape shape = small(GetParam());
  const std::vector<Microbatch> batches = {random_microbatch(shape, 1, 8, 5, false)};
  const bool whole = GetParam() == ModelFamily::bert;
  std::map<std::string, at::Tensor> weights;
  const Outcome ours =
      run_step(shape, batches,
               {.bounds = whole ? SliceBounds{0, 8} : SliceBounds{0, 4, 8}, .scale = 1}, &weights);
  for (const char* name : {"layers.0.mlp.up.weight", "layers.1.attention.v.weight",
                           "embedding.weight", "norm.weight", "layers.1.mlp_norm.weight"}) {
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

std::string family_name(const testing::TestParamInfo<ModelFamily>& family) {
  return std::string(name_of(family.param));
}
INSTANTIATE_TEST_SUITE_P(Model, Families,
                         testing::Values(ModelFamily::gpt2, ModelFamily::llama, ModelFamily::bert),
                         family_name);

}  // namespace
}  // namespace sluice
