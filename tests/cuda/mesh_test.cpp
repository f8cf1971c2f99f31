// Meshes of ranks that exchange the memory of GPUs: on one GPU by way of the host, on several by
// NCCL.
#include <gtest/gtest.h>

#include <cstdlib>

#include "cuda/on_gpu.h"
#include "cuda/over_host.h"
#include "runtime/trained.h"
#include "sluice/comm/nccl/nccl.h"

namespace sluice {
namespace {

using CudaMesh = test::OnGpu;

struct MeshCase {
  const char* name;
  test::Case schedule;
  MeshShape mesh;
  bool sequence_norms = false;
  bool deferred = false;
};

const std::vector<MeshCase>& meshes() {
  static const std::vector<MeshCase> list = {
      {"one rank", {"1f1b"}, {}},
      {"pipeline 2", {"1f1b", 2}, {}},
      {"pipeline 2, zb-v in 2 slices", {"zb-v", 2, 2}, {}},
      {"pipeline 2, dualpipe", {"dualpipe", 2}, {}},
      {"tensor 2", {"1f1b"}, {.tensor = 2}},
      {"tensor 2, sequence norms", {"1f1b"}, {.tensor = 2}, true},
      {"replicate 2", {"1f1b"}, {.replicate = 2}},
      {"shard 2, deferred", {"1f1b"}, {.shard = 2}, false, true},
      {"pipeline 2 x tensor 2", {"zb-v", 2}, {.tensor = 2}},
      {"pipeline 2 x shard 2", {"interleaved-1f1b", 2}, {.shard = 2}},
      {"replicate 2 x shard 2 x tensor 2",
       {"1f1b"},
       {.replicate = 2, .shard = 2, .tensor = 2},
       true},
      {"pipeline 4", {"v-half", 4}, {}},
  };
  return list;
}

void expect_as_alone(const MeshCase& c, const test::TrainOptions& how) {
  SCOPED_TRACE(c.name);
  for (const ModelFamily family : {ModelFamily::llama, ModelFamily::gpt2}) {
    const ModelShape shape = test::shape_of(family, true);
    test::TrainOptions options;
    options.steps = 4;
    options.global_batch_size = 32;
    options.gpu = true;
    const test::Trained alone = test::train({"1f1b"}, shape, options);
    options.over = how.over;
    options.gpu_each = how.gpu_each;
    options.mesh = c.mesh;
    options.sequence_norms = c.sequence_norms;
    options.deferred = c.deferred;
    const test::Trained trained = test::train(c.schedule, shape, options);
    ASSERT_EQ(trained.losses.size(), alone.losses.size());
    for (std::size_t n = 0; n < alone.losses.size(); ++n) {
      EXPECT_NEAR(trained.losses[n], alone.losses[n], 1e-5 * alone.losses[n]) << "step " << n + 1;
      EXPECT_NEAR(trained.norms[n], alone.norms[n], 1e-4 * alone.norms[n]) << "step " << n + 1;
    }
  }
}

TEST_F(CudaMesh, RanksOfOneGpuByWayOfTheHost) {
  test::TrainOptions how;
  how.over = [](Communicator& threads, const auto& body) { body(*test::over_host(threads)); };
  for (const MeshCase& c : meshes())
    expect_as_alone(c, how);
}

TEST_F(CudaMesh, AGpuForEachRankByNccl) {
  // NCCL reads the memory of another GPU of the same process where it lies, which the allocator's
  // pages (RankDevices) do not allow. Ranks are processes, outside of tests.
  setenv("NCCL_P2P_DIRECT_DISABLE", "1", 1);
  test::TrainOptions how;
  how.gpu_each = true;
  how.over = [](Communicator& threads, const auto& body) {
    run_nccl(threads, threads.rank(), {}, body);
  };
  for (const MeshCase& c : meshes())
    if (c.mesh.data() * c.mesh.tensor * c.schedule.devices <= cuda::num_devices())
      expect_as_alone(c, how);
  if (cuda::num_devices() < 2) GTEST_SKIP() << "ran one rank; more take as many GPUs";
}

}  // namespace
}  // namespace sluice
