// Training with nothing wide: weights, gradients and optimizer states in bf16, no masters, updates
// rounded stochastically.
#include <gtest/gtest.h>

#include "runtime/trained.h"

namespace sluice {
namespace {

using test::Case;
using test::shape_of;
using test::Trained;
using test::TrainOptions;

Case in_bf16(Case c) {
  c.dtype = NumberType::bfloat16;
  return c;
}

TrainOptions narrow_run(int steps, MeshShape mesh = {}) {
  TrainOptions run;
  run.steps = steps;
  run.narrow = true;
  run.mesh = mesh;
  run.microbatches = 8 / mesh.data();
  return run;
}

void expect_equal_states(const Trained& a, const Trained& b) {
  ASSERT_EQ(a.states.size(), b.states.size());
  for (const auto& [name, state] : a.states)
    EXPECT_TRUE(at::equal(state, b.states.at(name))) << name;
}

TEST(Narrow, LearnsAsWideTrainingDoes) {
  for (const auto& [family, steps, fall] :
       {std::tuple{ModelFamily::gpt2, 30, 0.3}, std::tuple{ModelFamily::llama, 8, 0.1},
        std::tuple{ModelFamily::bert, 8, 0.1}}) {
    SCOPED_TRACE(static_cast<int>(family));
    const ModelShape shape = shape_of(family, family == ModelFamily::gpt2);
    const Trained narrow = test::train(in_bf16({"zb-v", 2}), shape, narrow_run(steps));
    TrainOptions wide_run;
    wide_run.steps = steps;
    const Trained wide = test::train({"zb-v", 2}, shape, wide_run);
    EXPECT_LT(narrow.losses.back(), narrow.losses.front() - fall);
    EXPECT_NEAR(narrow.losses.back(), wide.losses.back(), 0.05);
    for (const auto& [name, gradient] : narrow.first_gradients)
      EXPECT_EQ(gradient.scalar_type(), at::kBFloat16) << name;
    for (const auto& [name, state] : narrow.states)
      EXPECT_EQ(state.scalar_type(), at::kBFloat16) << name;
    EXPECT_FALSE(narrow.states.contains("embedding.weight/master"));
  }
}

TEST(Narrow, TheScheduleChangesNoBitAndTiedWeightsStayEqual) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, true);
  const Trained reference = test::train(in_bf16({"1f1b", 1}), shape, narrow_run(5));
  for (const Case& c : {Case{"1f1b", 4}, Case{"zb-v", 4}, Case{"interleaved-1f1b", 2}}) {
    SCOPED_TRACE(testing::Message() << c.schedule << " on " << c.devices);
    const Trained trained = test::train(in_bf16(c), shape, narrow_run(5));
    test::expect_equal_bits(trained, reference);
    expect_equal_states(trained, reference);
    EXPECT_TRUE(
        at::equal(trained.weights.at("head.weight"), trained.weights.at("embedding.weight")));
  }
}

TEST(Narrow, ShardedStatesGiveTheSameBitsAsWholeOnes) {
  const ModelShape shape = shape_of(ModelFamily::llama, true);
  const Trained whole =
      test::train(in_bf16({"1f1b", 2}), shape, narrow_run(5, {.replicate = 4, .shard = 1}));
  for (const MeshShape mesh :
       {MeshShape{.replicate = 2, .shard = 2}, MeshShape{.replicate = 1, .shard = 4}}) {
    const Trained sharded = test::train(in_bf16({"1f1b", 2}), shape, narrow_run(5, mesh));
    test::expect_equal_bits(sharded, whole);
    expect_equal_states(sharded, whole);
  }
}

// Ranks that hold the same rows round them alike, which train() looks at.
TEST(Narrow, TensorRanksKeepWhatTheyShareEqual) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, true);
  const Trained trained =
      test::train(in_bf16({"zb-v", 2}), shape, narrow_run(20, {.shard = 2, .tensor = 2}));
  EXPECT_LT(trained.losses.back(), trained.losses.front() - 0.2);
  EXPECT_TRUE(at::equal(trained.weights.at("head.weight"), trained.weights.at("embedding.weight")));
}

TEST(Narrow, DeferredValidationChangesNoBit) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, true);
  for (const double max_norm : {0.0, 0.01}) {
    TrainOptions run = narrow_run(5, {.shard = 2});
    run.max_norm = max_norm;
    const Trained sync = test::train(in_bf16({"1f1b", 2}), shape, run);
    run.deferred = true;
    const Trained deferred = test::train(in_bf16({"1f1b", 2}), shape, run);
    test::expect_equal_bits(deferred, sync);
    expect_equal_states(deferred, sync);
  }
}

}  // namespace
}  // namespace sluice
