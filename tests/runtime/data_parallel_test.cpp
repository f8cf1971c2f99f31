// Data ranks: whoever adds up which gradients and updates which rows, training is the same.
#include "sluice/optim/data_parallel.h"

#include <gtest/gtest.h>

#include "runtime/trained.h"
#include "sluice/base/names.h"

namespace sluice {
namespace {

using test::Case;
using test::expect_close_gradients;
using test::expect_equal_bits;
using test::shape_of;
using test::train;
using test::Trained;
using test::TrainOptions;

// Eight sequences a step, in microbatches of one.
TrainOptions run_on(const MeshShape& mesh, int steps = 5) {
  TrainOptions run;
  run.steps = steps;
  run.global_batch_size = 8;
  run.microbatches = 8 / mesh.data();
  run.mesh = mesh;
  return run;
}

void expect_equal_states(const Trained& a, const Trained& b) {
  ASSERT_EQ(a.states.size(), b.states.size());
  for (const auto& [name, state] : a.states)
    EXPECT_TRUE(at::equal(state, b.states.at(name))) << name;
}

TEST(DataParallel, TwoRanksOfOneMicrobatchAreBitwiseOneOfTwo) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama, ModelFamily::bert})
    for (const auto type : {NumberType::float32, NumberType::bfloat16}) {
      SCOPED_TRACE(testing::Message() << name_of(family) << " " << name_of(type));
      const ModelShape shape = shape_of(family, true);
      TrainOptions run;
      run.steps = 5;
      run.global_batch_size = 8;  // microbatches of four sequences: 64 tokens
      run.microbatches = 2;
      const Trained one = train({"1f1b", 1, 1, 0, {}, type}, shape, run);
      run.microbatches = 1;
      for (const MeshShape& mesh : {MeshShape{.replicate = 2}, MeshShape{.shard = 2}}) {
        run.mesh = mesh;
        for (const Case& c : {Case{"1f1b", 1, 1, 0, {}, type}, Case{"zb-v", 2, 1, 0, {}, type}}) {
          const Trained two = train(c, shape, run);
          expect_equal_bits(two, one);
          expect_equal_states(two, one);
        }
      }
    }
}

TEST(DataParallel, ShardedStatesGiveTheSameBitsAsWholeOnes) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, true);
  for (const auto type : {NumberType::float32, NumberType::bfloat16})
    for (const int ranks : {2, 4}) {
      const Trained whole = train({"1f1b", 1, 1, 0, {}, type}, shape, run_on({.replicate = ranks}));
      for (const MeshShape& mesh : {MeshShape{.shard = ranks}, MeshShape{ranks / 2, 2}}) {
        SCOPED_TRACE(testing::Message()
                     << name_of(type) << ": " << mesh.replicate << " x " << mesh.shard);
        for (const Case& c : {Case{"1f1b", 1, 1, 0, {}, type}, Case{"v-half", 2, 1, 0, {}, type}}) {
          const Trained sharded = train(c, shape, run_on(mesh));
          expect_equal_bits(sharded, whole);
          expect_equal_states(sharded, whole);
        }
      }
    }
}

TEST(DataParallel, ThreeShardsAndMoreRanksThanRowBlocksOfAWeight) {
  ModelShape shape = shape_of(ModelFamily::llama, false);
  shape.layers = 2;
  shape.dim = 12;
  shape.ffn_dim = 20;
  TrainOptions run;
  run.steps = 3;
  run.microbatches = 1;
  for (const int ranks : {3, 6}) {
    run.global_batch_size = ranks;
    run.mesh = {.replicate = ranks};
    const Trained whole = train({"1f1b", 1}, shape, run);
    for (const MeshShape& mesh : {MeshShape{.shard = ranks}, MeshShape{ranks / 3, 3}}) {
      run.mesh = mesh;
      const Trained sharded = train({"1f1b", 1}, shape, run);
      expect_equal_bits(sharded, whole);
      expect_equal_states(sharded, whole);
    }
  }
}

TEST(DataParallel, TheSizeOfBucketsChangesNothing) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, false);
  TrainOptions run = run_on({.replicate = 2, .shard = 2}, 3);
  const Trained reference = train({"zb-v", 2}, shape, run);
  for (const std::int64_t bytes : {1, 1 << 20}) {
    run.bucket_bytes = bytes;
    expect_equal_bits(train({"zb-v", 2}, shape, run), reference);
  }
}

TEST(DataParallel, EveryScheduleAndMeshGivesTheGradientsOfOneRank) {
  const ModelShape shape = shape_of(ModelFamily::gpt2, false);
  const Trained serial = train({"1f1b", 1}, shape, run_on({}, 2));
  for (const MeshShape& mesh : {MeshShape{.replicate = 2}, MeshShape{.shard = 4},
                                MeshShape{.shard = 2, .tensor = 2}, MeshShape{2, 2}})
    for (const Case& c : {Case{"1f1b", 2}, Case{"interleaved-1f1b", 2}, Case{"v-half", 2},
                          Case{"seq1f1b", 2, 2}, Case{"zb-v", 2, 2}, Case{"dualpipe", 2}}) {
      SCOPED_TRACE(testing::Message() << c.schedule << " " << mesh.replicate << " x " << mesh.shard
                                      << " x " << mesh.tensor);
      if (c.schedule == "dualpipe" && mesh.data() > 2) continue;  // needs four microbatches
      const Trained trained = train(c, shape, run_on(mesh, 2));
      expect_close_gradients(trained.first_gradients, serial.first_gradients, 1e-5);
      for (std::size_t n = 0; n < serial.losses.size(); ++n) {
        EXPECT_NEAR(trained.losses[n], serial.losses[n], 1e-5);
        EXPECT_NEAR(trained.norms[n], serial.norms[n], 1e-5);
      }
    }
}

TEST(DataParallel, PackedDocumentsAreWeightedOverTheWholeBatch) {
  const ModelShape shape = shape_of(ModelFamily::llama, false);
  TrainOptions run = run_on({}, 2);
  std::vector<std::int64_t> starts;
  for (std::int64_t at = 0; at < 4000; at += 1 + at % 37)
    starts.push_back(at);
  starts.push_back(4000);
  run.source = test::tokens(starts);
  run.data.packing = Packing::documents;
  const Trained serial = train({"1f1b", 1}, shape, run);
  run.mesh = {.shard = 4};
  run.microbatches = 2;
  const Trained four = train({"1f1b", 2}, shape, run);
  expect_close_gradients(four.first_gradients, serial.first_gradients, 1e-5);
  EXPECT_NEAR(four.losses[0], serial.losses[0], 1e-6);
}

// Every weight of this one divides by 64 blocks, so that shares are exact.
TEST(DataParallel, HandsOverWhatTheFormulasSay) {
  ModelShape shape = shape_of(ModelFamily::llama, false);
  shape.layers = 2;
  shape.dim = 64;
  shape.kv_heads = 2;
  shape.ffn_dim = 64;
  std::int64_t elements = 0;
  for (const auto& [name, weight] : train({"1f1b", 1}, shape, run_on({}, 0)).weights)
    elements += weight.numel();
  for (const MeshShape& mesh :
       {MeshShape{.replicate = 2}, MeshShape{.shard = 2}, MeshShape{.shard = 4},
        MeshShape{.replicate = 4}, MeshShape{2, 2}}) {
    SCOPED_TRACE(testing::Message() << mesh.replicate << " x " << mesh.shard);
    const std::int64_t d = mesh.data(), r = mesh.replicate, s = mesh.shard;
    for (const Traffic& traffic : train({"1f1b", 1}, shape, run_on(mesh, 2)).traffic) {
      EXPECT_EQ(traffic.of(TrafficClass::gradient),
                2 * (elements * (d - 1) / d + elements * (r - 1) / d));
      EXPECT_EQ(traffic.of(TrafficClass::parameter), 2 * (elements * (s - 1) / s));
    }
  }
}

}  // namespace
}  // namespace sluice
