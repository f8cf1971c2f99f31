// Every mesh gives the serial run's losses and gradients.
#include "sluice/comm/mesh.h"

#include <gtest/gtest.h>

#include "runtime/trained.h"
#include "sluice/base/error.h"
#include "sluice/run/step_traffic.h"

namespace sluice {
namespace {

using test::Case;
using test::expect_close_gradients;
using test::train;
using test::Trained;
using test::TrainOptions;

// Divisible by 1, 2, 4 and 8 ranks; llama's two heads of keys and values are fewer than 4 or 8.
ModelShape divisible(ModelFamily family, bool tied = false) {
  ModelShape shape;
  shape.family = family;
  shape.layers = 8;
  shape.dim = 32;
  shape.heads = 8;
  shape.kv_heads = family == ModelFamily::llama ? 2 : 8;
  shape.ffn_dim = 48;
  shape.vocab_size = 64;
  shape.positions = family == ModelFamily::llama ? 0 : 16;
  shape.tied_embeddings = tied;
  return shape;
}

// Divisible by 3.
ModelShape in_thirds(ModelFamily family) {
  ModelShape shape = divisible(family);
  shape.dim = 36;
  shape.heads = 6;
  shape.kv_heads = family == ModelFamily::llama ? 3 : 6;
  shape.vocab_size = 66;
  return shape;
}

TrainOptions short_run(const MeshShape& mesh, bool sequence_norms, bool scatter = true) {
  TrainOptions run;
  run.microbatches = 4 / mesh.data();
  run.global_batch_size = 8;
  run.mesh = mesh;
  run.sequence_norms = sequence_norms;
  run.scatter = scatter;
  return run;
}

void expect_same(const Trained& ours, const Trained& serial) {
  ASSERT_EQ(ours.losses.size(), serial.losses.size());
  for (std::size_t n = 0; n < serial.losses.size(); ++n) {
    EXPECT_NEAR(ours.losses[n], serial.losses[n], 1e-6 * serial.losses[n]);
    EXPECT_NEAR(ours.norms[n], serial.norms[n], 1e-5 * serial.norms[n]);
  }
  expect_close_gradients(ours.first_gradients, serial.first_gradients, 1e-5);
}

const Case kCases[] = {{"1f1b"},   {"interleaved-1f1b"}, {"zb-v"},
                       {"v-half"}, {"seq1f1b", 1, 2},    {"zb-v", 1, 2}};

class MeshFamilies : public testing::TestWithParam<ModelFamily> {};

// Stages of a schedule must not outnumber the layers; interleaving needs two devices.
bool fits(const Case& c, const ModelShape& shape) {
  if (c.devices == 1 && c.schedule == "interleaved-1f1b") return false;
  const bool one_each = c.schedule == "1f1b" || c.schedule == "seq1f1b";
  return c.devices * (one_each ? 1 : 2) <= shape.layers;
}

TEST_P(MeshFamilies, GivesTheSerialGradients) {
  const ModelShape shape = divisible(GetParam());
  const Trained serial = train({"1f1b", 1}, shape, short_run({}, false));
  int num_runs = 0;
  for (const int data : {1, 2, 4})
    for (const int tensor : {1, 2, 4, 8})
      for (int pipeline = 1; pipeline <= 8; ++pipeline)
        for (const Case& base : kCases) {
          Case c = base;
          c.devices = pipeline;
          if (data * tensor * pipeline > 8 || !fits(c, shape)) continue;
          c.layers = even_layers(shape.layers, test::lowered_schedule(c, 4 / data).num_stages());
          for (const bool sequence_norms : {false, true}) {
            if (sequence_norms && tensor == 1) continue;
            // Replicas and shards in turn, and both where there are four.
            const bool shards = (num_runs++ + data) % 2 == 0;
            const MeshShape mesh{.replicate = shards ? (data == 4 ? 2 : 1) : data,
                                 .shard = shards ? (data == 4 ? 2 : data) : 1,
                                 .tensor = tensor};
            SCOPED_TRACE(testing::Message()
                         << c.schedule << " slices " << c.slices << " data " << mesh.replicate
                         << " x " << mesh.shard << " pipeline " << pipeline << " tensor " << tensor
                         << (sequence_norms ? " sequence norms" : ""));
            expect_same(train(c, shape, short_run(mesh, sequence_norms)), serial);
          }
        }
  EXPECT_EQ(num_runs, 185);
}

TEST_P(MeshFamilies, ThreeTensorRanks) {
  const ModelShape shape = in_thirds(GetParam());
  const Trained serial = train({"1f1b", 1}, shape, short_run({}, false));
  for (const int pipeline : {1, 2})
    for (const bool scatter : {false, true}) {
      SCOPED_TRACE(testing::Message() << "pipeline " << pipeline << " scatter " << scatter);
      expect_same(train({"zb-v", pipeline}, shape, short_run({.tensor = 3}, false, scatter)),
                  serial);
    }
}

TEST_P(MeshFamilies, TiedEmbeddingsAreDividedToo) {
  const ModelShape shape = divisible(GetParam(), true);
  TrainOptions run = short_run({}, false);
  run.steps = 3;
  run.optimizer = OptimizerKind::sgd;  // AdamW makes rounding errors of tiny gradients large
  const Trained serial = train({"1f1b", 1}, shape, run);
  for (const bool sequence_norms : {false, true}) {
    TrainOptions divided = short_run({.tensor = 2}, sequence_norms);
    divided.steps = 3;
    divided.optimizer = run.optimizer;
    const Trained ours = train({"1f1b", 2}, shape, divided);
    expect_same(ours, serial);
    EXPECT_TRUE(at::equal(ours.weights.at("head.weight"), ours.weights.at("embedding.weight")));
  }
}

TEST_P(MeshFamilies, RecomputationInsideDividedLayers) {
  const ModelShape shape = divisible(GetParam());
  for (const RecomputeLevel level : {RecomputeLevel::elementwise, RecomputeLevel::mlp,
                                     RecomputeLevel::all_but_attention, RecomputeLevel::full})
    for (const bool sequence_norms : {false, true}) {
      TrainOptions run = short_run({.tensor = 2}, sequence_norms);
      const Trained kept = train({"zb-v", 2, 2}, shape, run);
      run.level = level;
      const Trained again = train({"zb-v", 2, 2}, shape, run);
      test::expect_equal_bits(again, kept);
    }
}

INSTANTIATE_TEST_SUITE_P(Mesh, MeshFamilies, testing::Values(ModelFamily::gpt2, ModelFamily::llama),
                         [](const auto& family) {
                           return family.param == ModelFamily::gpt2 ? "gpt2" : "llama";
                         });

TEST(Mesh, AnEncoderIsDividedLikeADecoder) {
  const ModelShape shape = divisible(ModelFamily::bert);
  const Trained serial = train({"1f1b", 1}, shape, short_run({}, false));
  for (const bool sequence_norms : {false, true})
    for (const int tensor : {2, 4})
      expect_same(train({"v-half", 2}, shape, short_run({.tensor = tensor}, sequence_norms)),
                  serial);
}

// What one rank hands to others in a step of four microbatches of 2 x 16 tokens.
struct Volume {
  std::int64_t tensor = 1;
  std::int64_t tokens = 2 * 16, dim = 32, microbatches = 4;

  // b s h (t - 1) / t, and b s (t - 1), of all microbatches.
  std::int64_t unit() const { return microbatches * tokens * dim * (tensor - 1) / tensor; }
  std::int64_t words() const { return microbatches * tokens * (tensor - 1); }
};

void expect_traffic(const Traffic& traffic, TrafficClass kind, std::int64_t wanted) {
  EXPECT_EQ(traffic.of(kind), wanted) << traffic_name(kind);
}

TEST(MeshTraffic, InsideLayersEmbeddingAndLoss) {
  const std::int64_t layers = 8;
  for (const int tensor : {2, 4, 8}) {
    const Volume volume{.tensor = tensor};
    struct Row {
      const char* schedule;  // 1f1b runs B, zb-v I and W
      bool sequence_norms;
      std::int64_t layer, embedding, loss;  // in units
    };
    for (const Row& row : {Row{"1f1b", false, 8, 2, 2}, Row{"zb-v", false, 8, 2, 2},
                           Row{"1f1b", true, 10, 2, 3}, Row{"zb-v", true, 12, 2, 3}}) {
      SCOPED_TRACE(testing::Message()
                   << row.schedule << " tensor " << tensor << " norms " << row.sequence_norms);
      const Trained trained = train({row.schedule, 1}, divisible(ModelFamily::gpt2),
                                    short_run({.tensor = tensor}, row.sequence_norms));
      for (const Traffic& traffic : trained.traffic) {
        expect_traffic(traffic, TrafficClass::tensor_layer, layers * row.layer * volume.unit());
        expect_traffic(traffic, TrafficClass::embedding, row.embedding * volume.unit());
        expect_traffic(traffic, TrafficClass::loss, row.loss * volume.unit() + 2 * volume.words());
        // Two norms of two vectors a layer, the last norm, and 16 positions.
        const std::int64_t shared = (4 * layers + 2 + 16) * volume.dim;
        expect_traffic(traffic, TrafficClass::norm, row.sequence_norms ? (tensor - 1) * shared : 0);
        for (const TrafficClass none : {TrafficClass::boundary, TrafficClass::boundary_gather,
                                        TrafficClass::gradient, TrafficClass::parameter})
          expect_traffic(traffic, none, 0);
      }
    }
  }
}

TEST(MeshTraffic, BetweenStages) {
  const int pipeline = 4;
  for (const int tensor : {1, 2})
    for (const bool sequence_norms : {false, true})
      for (const bool scatter : {false, true}) {
        SCOPED_TRACE(testing::Message() << "tensor " << tensor << " norms " << sequence_norms
                                        << " scatter " << scatter);
        const Volume volume{.tensor = tensor};
        const std::int64_t whole = volume.microbatches * volume.tokens * volume.dim;
        const bool shares = sequence_norms || scatter;
        const bool gathers = scatter && !sequence_norms;
        const Trained trained = train({"1f1b", pipeline}, divisible(ModelFamily::llama),
                                      short_run({.tensor = tensor}, sequence_norms, scatter));
        for (std::size_t rank = 0; rank < trained.traffic.size(); ++rank) {
          const int device =
              place_of(static_cast<int>(rank), {.pipeline = pipeline, .tensor = tensor}).pipeline;
          const int neighbours = (device > 0) + (device + 1 < pipeline);
          // As many directions to send as to receive.
          expect_traffic(trained.traffic[rank], TrafficClass::boundary,
                         neighbours * (shares ? whole / tensor : whole));
          expect_traffic(trained.traffic[rank], TrafficClass::boundary_gather,
                         gathers ? neighbours * volume.unit() : 0);
        }
      }
}

// The same for every class, schedule, mesh and recomputation level by the function that predicts
// it.
TEST(MeshTraffic, IsWhatThePureFunctionSays) {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama, ModelFamily::bert})
    for (const Case& base : {Case{"1f1b"}, Case{"zb-v"}, Case{"zb-v", 1, 2}})
      for (const RecomputeLevel level :
           {RecomputeLevel::none, RecomputeLevel::elementwise, RecomputeLevel::mlp,
            RecomputeLevel::all_but_attention, RecomputeLevel::full})
        for (const bool sequence_norms : {false, true}) {
          if (family == ModelFamily::bert && base.slices > 1) continue;
          SCOPED_TRACE(testing::Message()
                       << base.schedule << " slices " << base.slices << " family "
                       << static_cast<int>(family) << " level " << static_cast<int>(level)
                       << " norms " << sequence_norms);
          Case c = base;
          c.devices = 2;
          MeshShape mesh{.tensor = 4};  // more than llama's heads of keys and values
          if (level != RecomputeLevel::none) mesh = {.shard = 2, .tensor = 2};
          if (level == RecomputeLevel::full) mesh = {.replicate = 2, .shard = 2};
          TrainOptions run = short_run(mesh, sequence_norms);
          run.level = level;
          const ModelShape shape = divisible(family, base.schedule == "1f1b");
          const Trained trained = train(c, shape, run);
          const RunPlan plan = test::plan_of(c, shape, run);
          for (int rank = 0; rank < plan.mesh.size(); ++rank) {
            const MeshPlace place = place_of(rank, plan.mesh);
            const Traffic wanted = step_traffic(plan, place.pipeline, place.data);
            for (int kind = 0; kind < kNumTrafficClasses; ++kind)
              expect_traffic(trained.traffic[static_cast<std::size_t>(rank)],
                             static_cast<TrafficClass>(kind),
                             wanted.of(static_cast<TrafficClass>(kind)));
          }
        }
}

}  // namespace
}  // namespace sluice
