// Ranks that share sequences, in groups that change from microbatch to microbatch, give the serial
// run's losses and gradients, keep what is predicted and send what is predicted.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "runtime/trained.h"
#include "sluice/base/error.h"

namespace sluice {
namespace {

using test::Case;
using test::train;
using test::Trained;
using test::TrainOptions;

using Groups = std::vector<SequenceGroup>;

ModelShape shape_with(ModelFamily family, std::int64_t heads, std::int64_t kv_heads) {
  ModelShape shape;
  shape.family = family;
  shape.layers = 4;
  shape.heads = heads;
  shape.kv_heads = family == ModelFamily::llama ? kv_heads : heads;
  shape.dim = 4 * heads;
  shape.ffn_dim = 48;
  shape.vocab_size = 64;
  shape.positions = family == ModelFamily::llama ? 0 : 16;
  return shape;
}

// 200 documents of 1 to 16 tokens.
std::vector<std::int64_t> short_starts() {
  std::vector<std::int64_t> starts = {0};
  std::mt19937 random(5);
  for (int n = 0; n < 200; ++n)
    starts.push_back(starts.back() + 1 + static_cast<std::int64_t>(random() % 16));
  starts.back() = 4000;  // and one that is far too long
  return starts;
}

TrainOptions unequal(const MeshShape& mesh, int microbatches) {
  TrainOptions run;
  run.source = test::tokens(short_starts());
  run.data.packing = Packing::sequences;
  run.data.overlong = Overlong::drop;
  run.microbatches = microbatches;
  run.global_batch_size = 12;
  run.mesh = mesh;
  return run;
}

// Sequences are dealt in turn to the groups of all microbatches, except to groups marked empty.
std::function<BatchPlan(std::span<const std::int64_t>)> mixes(std::vector<Groups> microbatches) {
  return [microbatches](std::span<const std::int64_t> lengths) {
    BatchPlan plan{microbatches};
    std::vector<SequenceGroup*> open;
    for (Groups& groups : plan.microbatches)
      for (SequenceGroup& group : groups) {
        if (group.sequences.empty()) open.push_back(&group);
        group.sequences.clear();
      }
    for (std::size_t n = 0; n < lengths.size(); ++n)
      open[n % open.size()]->sequences.push_back(static_cast<std::int64_t>(n));
    return plan;
  };
}
const std::vector<std::int64_t> kEmpty = {-1};  // marks a group that gets no sequences

void expect_serial(const Trained& ours, const Trained& serial) {
  ASSERT_EQ(ours.losses.size(), serial.losses.size());
  for (std::size_t n = 0; n < serial.losses.size(); ++n) {
    EXPECT_NEAR(ours.losses[n], serial.losses[n], 1e-6 * serial.losses[n]);
    EXPECT_NEAR(ours.norms[n], serial.norms[n], 1e-5 * serial.norms[n]);
  }
  test::expect_close_gradients(ours.first_gradients, serial.first_gradients, 1e-5);
}

void expect_predicted(const Trained& ours) {
  EXPECT_EQ(ours.peaks, ours.predicted);
  ASSERT_EQ(ours.traffic.size(), ours.predicted_traffic.size());
  for (std::size_t rank = 0; rank < ours.traffic.size(); ++rank)
    for (int kind = 0; kind < kNumTrafficClasses; ++kind)
      EXPECT_EQ(ours.traffic[rank].of(static_cast<TrafficClass>(kind)),
                ours.predicted_traffic[rank].of(static_cast<TrafficClass>(kind)))
          << "rank " << rank << " " << traffic_name(static_cast<TrafficClass>(kind));
}

class SequenceParallel : public testing::TestWithParam<ModelFamily> {
 protected:
  ModelShape shape_ = shape_with(GetParam(), 8, 2);
  Trained serial_ = train({"1f1b", 1}, shape_, unequal({}, 1));

  // With states sharded, and with parameters sharded.
  void check(const Case& c, TrainOptions run, std::vector<Groups> microbatches) {
    run.deal = mixes(std::move(microbatches));
    for (const bool sharded : {false, true}) {
      SCOPED_TRACE(sharded ? "sharded parameters" : "sharded states");
      run.sharded = sharded;
      const Trained ours = train(c, shape_, run);
      expect_serial(ours, serial_);
      expect_predicted(ours);
    }
  }
};

TEST_P(SequenceParallel, FourTwoAndTwoSingleRanksOfEight) {
  check({"1f1b", 1}, unequal({.replicate = 2, .shard = 4}, 2),
        {{{4, 0}, {2, 4}, {1, 6}, {1, 7}}, {{2, 0}, {2, 2}, {4, 4}}});
}

TEST_P(SequenceParallel, AllOfOneGroupAndEveryoneAlone) {
  check({"1f1b", 1}, unequal({.shard = 8}, 2),
        {{{8, 0}}, {{1, 0}, {1, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 5}, {1, 6}, {1, 7}}});
}

TEST_P(SequenceParallel, AGroupMayBeEmptyAndARankInNone) {
  check({"zb-h1", 1}, unequal({.shard = 4}, 3),
        {{{2, 0, kEmpty}, {2, 2}}, {{4, 0}}, {{1, 1}, {2, 2}}});
}

TEST_P(SequenceParallel, TwoMixesOnFourRanksOfEachStage) {
  for (const char* schedule : {"1f1b", "zb-v", "gpipe"}) {
    SCOPED_TRACE(schedule);
    check({schedule, 2}, unequal({.shard = 4}, 4),
          {{{4, 0}}, {{2, 0}, {1, 2}, {1, 3}}, {{4, 0}}, {{2, 0}, {2, 2}}});
  }
}

TEST_P(SequenceParallel, WithTensorAndPipelineRanks) {
  for (const bool sequence_norms : {false, true}) {
    SCOPED_TRACE(sequence_norms);
    TrainOptions run = unequal({.shard = 2, .tensor = 2}, 3);
    run.sequence_norms = sequence_norms;
    check({"zb-v", 2}, run, {{{2, 0}}, {{1, 0}, {1, 1}}, {{2, 0}}});
  }
}

TEST_P(SequenceParallel, RecomputationExchangesAgainAndGivesTheSameBits) {
  TrainOptions run = unequal({.shard = 4}, 2);
  run.deal = mixes({{{4, 0}}, {{2, 0}, {1, 2}, {1, 3, kEmpty}}});
  const Trained kept = train({"zb-v", 2}, shape_, run);
  expect_serial(kept, serial_);
  for (const RecomputeLevel level : {RecomputeLevel::elementwise, RecomputeLevel::mlp,
                                     RecomputeLevel::all_but_attention, RecomputeLevel::full}) {
    SCOPED_TRACE(static_cast<int>(level));
    run.level = level;
    const Trained again = train({"zb-v", 2}, shape_, run);
    test::expect_equal_bits(again, kept);
    expect_predicted(again);
  }
}

TEST_P(SequenceParallel, StepsMayHaveDifferentNumbersOfMicrobatches) {
  TrainOptions serial = unequal({}, 1);
  serial.steps = 3;
  serial.optimizer = OptimizerKind::sgd;
  TrainOptions run = serial;
  run.mesh = {.shard = 2};
  run.microbatches = 2;
  std::set<int> numbers;
  run.deal = [&numbers](std::span<const std::int64_t> lengths) {
    const std::vector<Groups> two = {{{2, 0}}, {{1, 0}, {1, 1}}};
    std::vector<Groups> five(5, Groups{{2, 0}});
    const BatchPlan plan = mixes(lengths[0] % 2 == 0 ? two : five)(lengths);
    numbers.insert(plan.num_microbatches());
    return plan;
  };
  for (const char* schedule : {"1f1b", "zb-v"}) {
    SCOPED_TRACE(schedule);
    const Trained ours = train({schedule, 2}, shape_, run);
    expect_serial(ours, train({"1f1b", 1}, shape_, serial));
    expect_predicted(ours);
    EXPECT_EQ(numbers, (std::set<int>{2, 5}));
  }
}

// Replicas hold the same shards, so the ranks of a group may be of several shard groups.
TEST_P(SequenceParallel, AGroupMayCrossShardGroups) {
  check({"1f1b", 1}, unequal({.replicate = 2, .shard = 2}, 2), {{{4, 0}}, {{2, 0}, {2, 2}}});
  check({"zb-h1", 1}, unequal({.replicate = 2, .shard = 3}, 2),
        {{{4, 0}, {2, 4}}, {{2, 0}, {2, 2}, {1, 4}, {1, 5}}});
}

TEST_P(SequenceParallel, DeferredValidationChangesNoBit) {
  TrainOptions run = unequal({.shard = 4}, 2);
  run.steps = 3;
  run.deal = mixes({{{4, 0}}, {{2, 0}, {1, 2}, {1, 3}}});
  const Trained settled = train({"zb-v", 2}, shape_, run);
  run.deferred = true;
  test::expect_equal_bits(train({"zb-v", 2}, shape_, run), settled);
}

INSTANTIATE_TEST_SUITE_P(Families, SequenceParallel,
                         testing::Values(ModelFamily::gpt2, ModelFamily::llama, ModelFamily::bert));

TEST(SequenceGroups, KeyHeadsThatDoNotDivideAmongRanksAreCopied) {
  // Query heads of a rank: 6, 3; users of a key head: 2 (of 3 key heads), 6 (of 1), 1 (of 6).
  for (const std::int64_t kv_heads : {1, 2, 3, 6}) {
    SCOPED_TRACE(kv_heads);
    const ModelShape shape = shape_with(ModelFamily::llama, 6, kv_heads);
    const Trained serial = train({"1f1b", 1}, shape, unequal({}, 1));
    TrainOptions run = unequal({.shard = 2}, 2);
    run.deal = mixes({{{2, 0}}, {{1, 0}, {1, 1}}});
    const Trained ours = train({"1f1b", 2}, shape, run);
    expect_serial(ours, serial);
    expect_predicted(ours);
  }
}

TEST(SequenceGroups, TiedEmbeddingsGetTheSumOfBothGradients) {
  ModelShape shape = shape_with(ModelFamily::gpt2, 8, 8);
  shape.tied_embeddings = true;
  const Trained serial = train({"1f1b", 1}, shape, unequal({}, 1));
  TrainOptions run = unequal({.shard = 4}, 2);
  run.deal = mixes({{{4, 0}}, {{2, 0}, {1, 2}, {1, 3}}});
  for (const int devices : {1, 2})
    for (const bool sharded : {false, true}) {
      SCOPED_TRACE(testing::Message() << devices << " devices, sharded " << sharded);
      run.sharded = sharded;
      const Trained ours = train({"1f1b", devices}, shape, run);
      expect_serial(ours, serial);
      expect_predicted(ours);
      if (!sharded) {
        EXPECT_TRUE(at::equal(ours.weights.at("embedding.weight"), ours.weights.at("head.weight")));
      }
    }
}

TEST(SequenceGroups, MaskedTokensArePredictedAsBySerialBert) {
  ModelShape shape = shape_with(ModelFamily::bert, 8, 8);
  shape.vocab_size = 66;
  TrainOptions serial = unequal({}, 1);
  serial.data.vocab_size = 66;
  serial.data.masks = MaskOptions{.seed = 3, .mask_token = 65, .num_ordinary = 64};
  TrainOptions run = serial;
  run.mesh = {.shard = 4};
  run.microbatches = 2;
  run.deal = mixes({{{4, 0}}, {{2, 0}, {1, 2}, {1, 3}}});
  const Trained ours = train({"zb-v", 2}, shape, run);
  expect_serial(ours, train({"1f1b", 1}, shape, serial));
  expect_predicted(ours);
}

TEST(SequenceGroups, PaddingNeedsNoMorePositionsThanTheSequences) {
  // Two tokens at most, and rows padded to multiples of eight.
  ModelShape shape = shape_with(ModelFamily::gpt2, 8, 8);
  shape.positions = 2;
  std::vector<std::int64_t> starts(2001);
  std::iota(starts.begin(), starts.end(), 0);
  for (std::int64_t& start : starts)
    start *= 2;
  TrainOptions run = unequal({}, 1);
  run.source = test::tokens(starts);
  run.data.sequence_length = 2;
  run.global_batch_size = 3;
  const Trained serial = train({"1f1b", 1}, shape, run);
  run.mesh = {.shard = 4, .tensor = 2};
  run.deal = mixes({{{4, 0}}});
  const Trained ours = train({"1f1b", 1}, shape, run);
  expect_serial(ours, serial);
  expect_predicted(ours);
}

TEST(SequenceGroups, APlanOfSingleRanksGivesTheBitsOfDealing) {
  const ModelShape shape = shape_with(ModelFamily::gpt2, 4, 4);
  TrainOptions run = unequal({.shard = 3}, 2);
  run.steps = 3;
  const Trained dealt = train({"1f1b", 2}, shape, run);
  run.deal = [](std::span<const std::int64_t> lengths) {
    return deal_longest_first(lengths, 2, 3);
  };
  test::expect_equal_bits(train({"1f1b", 2}, shape, run), dealt);
}

TEST(SequenceGroups, NarrowNumbersKeepWhatIsPredicted) {
  const ModelShape shape = shape_with(ModelFamily::llama, 8, 2);
  TrainOptions run = unequal({.shard = 4}, 2);
  run.deal = mixes({{{4, 0}}, {{2, 0}, {2, 2}}});
  const Trained ours =
      train({.schedule = "1f1b", .devices = 2, .dtype = NumberType::bfloat16}, shape, run);
  expect_predicted(ours);
  EXPECT_NEAR(ours.losses[0], train({"1f1b", 1}, shape, unequal({}, 1)).losses[0], 0.02);
}

TEST(SequenceGroups, RandomPlansGiveTheSerialLoss) {
  std::mt19937 random(11);
  const auto below = [&](int end) {
    return static_cast<int>(random() % static_cast<unsigned>(end));
  };
  for (int round = 0; round < 24; ++round) {
    const int ranks = 1 + below(8), sequences = 1 + below(14);
    ModelShape shape = shape_with(static_cast<ModelFamily>(below(3)), 8, 1 << below(4));
    shape.layers = 2;
    if (shape.positions) shape.positions = 200;
    std::vector<std::int64_t> starts = {0};
    while (starts.back() < 3500)
      starts.push_back(starts.back() + 1 + below(200));
    starts.push_back(4000);  // dropped, if it is too long
    TrainOptions run = unequal({}, 1);
    run.source = test::tokens(starts);
    run.data.sequence_length = 200;
    run.global_batch_size = sequences;
    const Trained serial = train({"1f1b", 1}, shape, run);

    BatchPlan plan;
    plan.microbatches.resize(static_cast<std::size_t>(1 + below(4)));
    std::vector<SequenceGroup*> groups;
    for (Groups& of_microbatch : plan.microbatches)
      for (int rank = 0; rank < ranks;) {
        int degree = 1 << below(4);
        while (rank % degree != 0 || rank + degree > ranks)
          degree /= 2;
        if (below(6) > 0) of_microbatch.push_back({degree, rank});  // else these are in none
        rank += degree;
      }
    for (Groups& of_microbatch : plan.microbatches)
      for (SequenceGroup& group : of_microbatch)
        groups.push_back(&group);
    if (groups.empty()) groups.push_back(&plan.microbatches[0].emplace_back());
    for (int n = 0; n < sequences; ++n)
      groups[static_cast<std::size_t>(below(static_cast<int>(groups.size())))]->sequences.push_back(
          n);
    ASSERT_EQ(problem_of(plan, {sequences, ranks, shape.heads}), "") << "round " << round;

    const char* const schedules[] = {"1f1b", "zb-h1", "gpipe"};
    const Case c{schedules[below(3)], 1 + below(2)};
    run.sharded = below(2) == 1;
    run.mesh = {.shard = ranks};
    run.microbatches = plan.num_microbatches();
    run.deal = [&](std::span<const std::int64_t>) { return plan; };
    SCOPED_TRACE(testing::Message() << "round " << round << ", " << ranks << " ranks, " << sequences
                                    << " sequences, " << c.schedule);
    const Trained ours = train(c, shape, run);
    EXPECT_NEAR(ours.losses[0], serial.losses[0], 1e-6 * (1 + serial.losses[0]));
    EXPECT_NEAR(ours.norms[0], serial.norms[0], 1e-5 * (1 + serial.norms[0]));
    expect_predicted(ours);
  }
}

}  // namespace
}  // namespace sluice
