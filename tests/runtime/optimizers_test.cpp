// Optimizers other than AdamW on any mesh and schedule: the serial run to rounding, with the
// traffic and the states that the plan says.
#include <gtest/gtest.h>

#include "runtime/trained.h"
#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/comm/threads/threads.h"
#include "sluice/model/autograd_layer.h"
#include "sluice/run/memory.h"
#include "sluice/run/optimizer_states.h"
#include "sluice/run/step_traffic.h"

namespace sluice {
namespace {

using test::Case;
using test::train;
using test::Trained;
using test::TrainOptions;

struct Row {
  Case c;
  MeshShape mesh;
  bool sequence_norms = false;
  bool deferred = false;
};

const Row kRows[] = {
    {{"1f1b", 2}, {}},
    {{"zb-v", 2}, {.shard = 2}},
    {{"1f1b", 1}, {.shard = 3}},
    {{"1f1b", 1}, {.shard = 8}},
    {{"zb-h1", 2}, {.replicate = 2, .shard = 2}},
    {{"1f1b", 1}, {.tensor = 2}},
    {{"v-half", 2}, {.shard = 2, .tensor = 2}, true},
    {{"dualpipe", 2}, {.shard = 2}},
    {{"seq1f1b", 2, 2}, {.replicate = 2}},
    {{"1f1b", 2}, {.shard = 2}, false, true},
};

// Of states that are fp32, by tensor rank 0's part of each.
std::int64_t bytes_of_states(const Trained& trained) {
  std::int64_t bytes = 0;
  for (const auto& [name, state] : trained.states)
    bytes += static_cast<std::int64_t>(state.nbytes());
  return bytes;
}

class Optimizers : public testing::TestWithParam<std::tuple<OptimizerKind, ModelFamily>> {};

TEST_P(Optimizers, GiveTheSerialRunOnAnyMesh) {
  const auto [kind, family] = GetParam();
  const ModelShape shape = test::shape_of(family, family == ModelFamily::gpt2);
  TrainOptions options;
  options.steps = 3;
  options.optimizer = kind;
  options.global_batch_size = 24;
  options.microbatches = 24;
  const Trained serial = train({"1f1b", 1}, shape, options);
  const Trained adamw = [&] {
    TrainOptions other = options;
    other.optimizer = OptimizerKind::adamw;
    return train({"1f1b", 1}, shape, other);
  }();
  EXPECT_FALSE(at::equal(adamw.weights.at("layers.0.mlp.up.weight"),
                         serial.weights.at("layers.0.mlp.up.weight")));
  for (const Row& row : kRows) {
    if (family == ModelFamily::bert && row.c.slices > 1) continue;
    SCOPED_TRACE(testing::Message() << row.c.schedule << " on " << row.c.devices << ", replicate "
                                    << row.mesh.replicate << ", shard " << row.mesh.shard
                                    << ", tensor " << row.mesh.tensor);
    TrainOptions run = options;
    run.mesh = row.mesh;
    run.microbatches = 24 / row.mesh.data();
    run.sequence_norms = row.sequence_norms;
    run.deferred = row.deferred;
    const Trained trained = train(row.c, shape, run);
    for (std::size_t n = 0; n < serial.losses.size(); ++n)
      EXPECT_NEAR(trained.losses[n], serial.losses[n], 2e-5);
    for (const auto& [name, weight] : serial.weights) {
      // Both directions of a gradient that is nearly 0 are right, so what is small may differ.
      const double scale = std::max(weight.norm().item<double>(), 0.1);
      EXPECT_LE((trained.weights.at(name) - weight).norm().item<double>(), 1e-3 * scale) << name;
    }
    EXPECT_EQ(trained.states.size(), serial.states.size());
    const RunPlan plan = plan_of(row.c, shape, run);
    // Where a step was corrected, forwards have run twice.
    for (int rank = 0; rank < plan.mesh.size() && !row.deferred; ++rank) {
      const MeshPlace place = place_of(rank, plan.mesh);
      const Traffic wanted = step_traffic(plan, place.pipeline, place.data);
      for (int n = 0; n < kNumTrafficClasses; ++n) {
        const auto traffic = static_cast<TrafficClass>(n);
        EXPECT_EQ(trained.traffic[static_cast<std::size_t>(rank)].of(traffic),
                  run.steps * wanted.of(traffic))
            << traffic_name(traffic) << " of rank " << rank;
      }
    }
    if (plan.mesh.data() * plan.mesh.tensor == 1 && row.c.schedule != "dualpipe") {
      std::int64_t predicted = 0;
      for (int device = 0; device < plan.schedule.num_devices(); ++device)
        predicted += weight_bytes(plan, device).optimizer;
      EXPECT_EQ(bytes_of_states(trained), predicted);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Optimizers,
    testing::Combine(testing::Values(OptimizerKind::nadam, OptimizerKind::muon),
                     testing::Values(ModelFamily::gpt2, ModelFamily::llama, ModelFamily::bert)),
    [](const auto& row) {
      return std::string(name_of(std::get<0>(row.param))) + "_" +
             std::string(name_of(std::get<1>(row.param)));
    });

TEST(Muon, OwnLayersWithoutMatricesAreRefused) {
  TrainOptions options;
  options.optimizer = OptimizerKind::muon;
  const RunPlan plan = plan_of({"1f1b", 1}, test::shape_of(ModelFamily::gpt2, false), options);
  const Dataset data(options.source, options.data);
  const auto start = [&](bool matrix) {
    const LayerFactory own = [matrix](const LayerOptions& layer) {
      const std::int64_t dim = layer.shape.dim;
      const at::Tensor gain =
          (matrix ? at::eye(dim) : at::ones({dim})).clone().set_requires_grad(true);
      OwnModule module;
      module.parameters = {{"gain", gain}};
      module.forward = [=](const at::Tensor& x) { return matrix ? at::matmul(x, gain) : x * gain; };
      return std::make_unique<AutogradLayer>(layer, module);
    };
    run_threads(1, {}, [&](Communicator& world) {
      Trainer trainer(plan, data, world, {.make_layer = own});
      trainer.step(1);
    });
  };
  EXPECT_NO_THROW(start(true));
  try {
    start(false);
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_TRUE(
        std::string(error.what())
            .ends_with("optimizer.name is muon: layers 0 to 7 have no matrices, which are all "
                       "that it updates; use adamw or nadam"))
        << error.what();
  }
}

// Whole matrices, each with one rank, and all ranks with about as much.
TEST(MatrixOwners, DealMatricesEvenly) {
  ModelShape shape = test::shape_of(ModelFamily::llama, false);
  const OptimizerConfig muon{.name = OptimizerKind::muon};
  const std::vector<ParameterShape> parameters =
      stage_parameters(shape, {.first = 0, .end = 8, .embedding = true, .head = true});
  for (const int shards : {2, 3, 5}) {
    std::vector<std::int64_t> has(static_cast<std::size_t>(shards), 0);
    const MatrixOwners owners(muon, 1, parameters, shards);
    for (const ParameterShape& parameter : parameters) {
      const int owner = owners.owner_of(parameter.name);
      EXPECT_EQ(owner >= 0, by_muon(muon, parameter)) << parameter.name;
      if (owner >= 0) has[static_cast<std::size_t>(owner)] += parameter.count();
    }
    const auto [least, most] = std::minmax_element(has.begin(), has.end());
    EXPECT_LE(*most - *least, shape.dim * shape.ffn_dim) << shards;
  }
  EXPECT_EQ(MatrixOwners(muon, 0, parameters, 1).owner_of("layers.0.mlp.up.weight"), -1);
  EXPECT_EQ(MatrixOwners({}, 0, parameters, 2).owner_of("layers.0.mlp.up.weight"), -1);
}

}  // namespace
}  // namespace sluice
