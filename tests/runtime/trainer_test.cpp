// Real training through every schedule: all of them agree.
#include "sluice/runtime/trainer.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "model/reference.h"
#include "runtime/trained.h"
#include "sluice/comm/threads/threads.h"
#include "support/plans.h"

namespace sluice {
namespace {

using test::Case;
using test::expect_close_gradients;
using test::expect_equal_bits;
using test::lowered_schedule;
using test::shape_of;
using test::tokens;
using test::Trained;

Trained train(const Case& c, const ModelShape& shape, int steps,
              RecomputeLevel level = RecomputeLevel::none,
              OptimizerKind kind = OptimizerKind::adamw) {
  return test::train(c, shape, {.steps = steps, .level = level, .optimizer = kind});
}

const std::vector<Case> kOneSlice = {{"gpipe", 1},
                                     {"gpipe", 4},
                                     {"1f1b", 2},
                                     {"1f1b", 4},
                                     {"interleaved-1f1b", 4},
                                     {"zb-h1", 4},
                                     {"zb-h2", 4},
                                     {"zb-1p", 4},
                                     {"zb-2p", 4},
                                     {"zb", 4, 1, 3},
                                     {"zb-v", 2},
                                     {"zb-v", 4},
                                     {"zb-v-auto", 4},
                                     {"v-min", 4},
                                     {"v-half", 2},
                                     {"v-half", 4},
                                     {"v-zb", 4},
                                     {"1f1b-v", 4},
                                     {"adaptive-v", 4, 1, 5},
                                     {"interleaved-zb", 4},
                                     {"dualpipe-v", 4},
                                     {"gis", 4}};

TEST(Trainer, EveryScheduleOfOneSliceGivesTheSameBits) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, true);
  const Trained reference = train({"1f1b", 1}, shape, 5);
  EXPECT_LT(reference.losses.back(), reference.losses.front());
  for (const Case& c : kOneSlice) {
    SCOPED_TRACE(testing::Message() << c.schedule << " on " << c.devices);
    expect_equal_bits(train(c, shape, 5), reference);
  }
}

TEST(Trainer, LlamaToo) {
  const ModelShape shape = shape_of(ModelFamily::llama, false);
  const Trained reference = train({"1f1b", 1}, shape, 3);
  for (const Case& c : {Case{"v-half", 4}, Case{"zb-v", 2}, Case{"interleaved-1f1b", 2}})
    expect_equal_bits(train(c, shape, 3), reference);
}

TEST(Trainer, BertToo) {
  for (const bool tied : {false, true}) {
    const ModelShape shape = shape_of(ModelFamily::bert, tied);
    const Trained reference = train({"1f1b", 1}, shape, 3);
    EXPECT_LT(reference.losses.back(), reference.losses.front());
    for (const Case& c : {Case{"v-half", 4}, Case{"zb-v", 2}, Case{"1f1b", 4}})
      expect_equal_bits(train(c, shape, 3), reference);
    expect_equal_bits(train({"zb-v", 2}, shape, 3, RecomputeLevel::mlp), reference);
  }
}

TEST(Trainer, EmbeddingAndHeadAsStagesOfTheirOwnChangeNoBit) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, true);
  const Trained reference = train({"1f1b", 1}, shape, 3);
  for (const Case& c : {Case{"1f1b", 4, 1, 0, {0, 4, 4, 0}}, Case{"zb-v", 2, 1, 0, {0, 4, 4, 0}},
                        Case{"v-half", 4, 1, 0, {0, 1, 1, 2, 2, 1, 1, 0}}}) {
    SCOPED_TRACE(testing::Message() << c.schedule << " on " << c.devices);
    expect_equal_bits(train(c, shape, 3), reference);
  }
}

TEST(Trainer, Bfloat16LearnsAsFp32DoesAndTheScheduleChangesNoBitThereEither) {
  for (const auto& [family, steps] : {std::pair{ModelFamily::gpt2, 20},
                                      std::pair{ModelFamily::llama, 5},
                                      {ModelFamily::bert, 5}}) {
    SCOPED_TRACE(static_cast<int>(family));
    const ModelShape shape = shape_of(family, true);
    const Trained reference = train({"1f1b", 1, 1, 0, {}, NumberType::bfloat16}, shape, steps);
    const Trained wide = train({"1f1b", 1}, shape, steps);
    EXPECT_LT(reference.losses.back(), reference.losses.front());
    EXPECT_NEAR(reference.losses.front(), wide.losses.front(), 1e-2);
    EXPECT_NEAR(reference.losses.back(), wide.losses.back(), 5e-2);
    expect_equal_bits(train({"v-half", 2, 1, 0, {}, NumberType::bfloat16}, shape, steps),
                      reference);
    for (const auto& [name, weight] : reference.weights) {
      const at::Tensor& master = reference.states.at(name + "/master");
      EXPECT_EQ(master.scalar_type(), at::kFloat) << name;
      EXPECT_TRUE(at::equal(weight, master.to(at::kBFloat16))) << name;
    }
    EXPECT_FALSE(wide.states.contains("embedding.weight/master"));
  }
}

TEST(Trainer, SlicedSchedulesAgreeAmongThemselvesAndWithWholeOnesToRounding) {
  const ModelShape shape = shape_of(ModelFamily::llama, false);
  const Trained whole = train({"1f1b", 1}, shape, 5, RecomputeLevel::none, OptimizerKind::sgd);
  const Trained sliced =
      train({"seq1f1b", 1, 4}, shape, 5, RecomputeLevel::none, OptimizerKind::sgd);
  for (const Case& c : {Case{"seq1f1b", 4, 4}, Case{"seq1f1b-i", 2, 4}, Case{"seq-zb", 4, 4},
                        Case{"zb-v", 4, 4}, Case{"v-half", 4, 4}, Case{"v-zb", 2, 4}}) {
    SCOPED_TRACE(testing::Message() << c.schedule << " on " << c.devices);
    expect_equal_bits(train(c, shape, 5, RecomputeLevel::none, OptimizerKind::sgd), sliced);
  }
  expect_close_gradients(sliced.first_gradients, whole.first_gradients, 1e-5);
  for (std::size_t n = 0; n < whole.losses.size(); ++n)
    EXPECT_NEAR(sliced.losses[n], whole.losses[n], 1e-5);
}

TEST(Trainer, TwoPipesAndReversedOrdersAgreeToRounding) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, false);
  const Trained reference = train({"1f1b", 1}, shape, 2);
  for (const Case& c : {Case{"dualpipe", 4}, Case{"looped-bfs", 4}}) {
    SCOPED_TRACE(c.schedule);
    expect_close_gradients(train(c, shape, 2).first_gradients, reference.first_gradients, 1e-6);
  }
}

TEST(Trainer, RecomputationChangesNothingButMemory) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, false);
  const Trained plain = train({"1f1b", 4}, shape, 3);
  const Trained full = train({"1f1b", 4}, shape, 3, RecomputeLevel::full);
  expect_equal_bits(full, plain);
  EXPECT_LT(full.peaks[0], plain.peaks[0]);
}

TEST(Trainer, EvaluationDoesNotDependOnTheSchedule) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, false);
  const Dataset data(tokens(), {.sequence_length = 16, .vocab_size = 64, .shuffle = false});
  const auto evaluated = [&](const Case& c) {
    const RunPlan plan = test::plan_for(shape, lowered_schedule(c, 8), 16, 16);
    double loss = 0;
    run_threads(c.devices, {}, [&](Communicator& world) {
      at::set_num_threads(1);
      const double here = Trainer(plan, data, world).evaluate(data, 32);
      if (world.rank() == 0) loss = here;
    });
    return loss;
  };
  const double reference = evaluated({"1f1b", 1});
  EXPECT_NEAR(reference, std::log(64), 0.2);  // nothing is learnt yet
  for (const Case& c : {Case{"v-half", 4}, Case{"zb-v", 2}, Case{"dualpipe-v", 2}})
    EXPECT_EQ(evaluated(c), reference) << c.schedule;
  EXPECT_NEAR(evaluated({"seq1f1b", 4, 4}), reference, 1e-5);
}

// Every sample counts once, whichever batch, microbatch and data rank it falls to: the last batch
// may be incomplete, and ranks may have no sample of it.
TEST(Trainer, EvaluationDoesNotDependOnHowSamplesAreDealt) {
  struct Deal {
    Case c;
    std::int64_t batch = 16;
    int microbatches = 8;
    MeshShape mesh = {};
  };
  // The lengths of the documents differ, and so do the numbers of targets.
  const Dataset data(
      tokens({0, 3, 40, 41, 300, 317, 900, 1000, 2222, 4000}),
      {.sequence_length = 16, .packing = Packing::documents, .vocab_size = 64, .shuffle = false});
  const auto evaluated = [&](const Deal& deal, std::int64_t samples) {
    RunPlan plan = test::plan_for(shape_of(ModelFamily::llama, false),
                                  lowered_schedule(deal.c, deal.microbatches), 16, deal.batch);
    plan.mesh = deal.mesh;
    plan.mesh.pipeline = deal.c.devices;
    double loss = 0;
    run_threads(plan.mesh.size(), {}, [&](Communicator& world) {
      at::set_num_threads(1);
      const double here = Trainer(plan, data, world).evaluate(data, samples);
      if (world.rank() == world.size() - 1) loss = here;
    });
    return loss;
  };
  for (const std::int64_t samples : {std::int64_t{1}, std::int64_t{37}, data.num_samples()}) {
    SCOPED_TRACE(samples);
    const double one_by_one = evaluated({{"1f1b", 1}, 1, 1}, samples);
    for (const Deal& deal : {Deal{{"1f1b", 1}, 16, 8}, Deal{{"zb-v", 2}, 64, 4},
                             Deal{{"v-half", 2}, 24, 3, {.replicate = 2}},
                             Deal{{"1f1b", 2}, 32, 4, {.replicate = 2, .shard = 2}}})
      EXPECT_NEAR(evaluated(deal, samples), one_by_one, 1e-6)
          << deal.batch << " in " << deal.microbatches;
  }
}

TEST(Trainer, ALossThatIsNotFiniteStaysInTheMeanOfAnEvaluation) {
  const RunPlan plan =
      test::plan_for(shape_of(ModelFamily::llama, false), lowered_schedule({"1f1b", 1}, 1), 16, 1);
  const Dataset data(tokens(), {.sequence_length = 16, .vocab_size = 64, .shuffle = false});
  run_threads(1, {}, [&](Communicator& world) {
    Trainer trainer(plan, data, world);
    for (Parameter* parameter : trainer.parameters())
      if (parameter->name == "embedding.weight") parameter->value[data.sample(2).tokens[5]] = NAN;
    EXPECT_FALSE(std::isfinite(trainer.evaluate(data, 3)));
  });
}

TEST(Trainer, AStepEqualsPlainAutograd) {
  const ModelShape shape = shape_of(ModelFamily::llama, false);
  const Trained ours = train({"zb-v", 4}, shape, 1);
  // Weights before the first step: a fresh trainer that takes none.
  const Trained fresh = train({"1f1b", 1}, shape, 0);
  const Dataset data(tokens(), {.sequence_length = 16, .vocab_size = 64, .seed = 3});
  std::vector<Microbatch> batches;
  for (std::int64_t n = 0; n < 16; ++n) {
    const Sample sample = data.sample(n);
    const std::vector<std::int64_t> in(sample.tokens.begin(), sample.tokens.end());
    const std::vector<std::int64_t> out(sample.targets.begin(), sample.targets.end());
    batches.push_back({at::tensor(in).unsqueeze(0), at::tensor(out).unsqueeze(0), {}, {}});
  }
  const test::ReferenceResult reference =
      test::reference_step(shape, fresh.weights, batches, 1.0 / 256);
  EXPECT_NEAR(ours.losses[0], reference.loss, 1e-6 * reference.loss);
  expect_close_gradients(ours.first_gradients, reference.gradients, 1e-5);
}

}  // namespace
}  // namespace sluice
