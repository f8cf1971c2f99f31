// Whole training steps on a GPU: against the CPU, and pipelines of SM partitions against one rank.
#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>

#include "cuda/on_gpu.h"
#include "runtime/trained.h"
#include "sluice/base/error.h"

namespace sluice {
namespace {

using CudaTraining = test::OnGpu;

void expect_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t n = 0; n < a.size(); ++n)
    EXPECT_NEAR(a[n], b[n], tolerance * std::abs(b[n])) << "step " << n + 1;
}

TEST_F(CudaTraining, LossesAreThoseOfTheCpu) {
  for (const ModelFamily family : {ModelFamily::llama, ModelFamily::gpt2, ModelFamily::bert})
    for (const bool tied : {false, true}) {
      const ModelShape shape = test::shape_of(family, tied);
      test::TrainOptions options{.steps = 5};
      const test::Trained cpu = test::train({"1f1b"}, shape, options);
      options.gpu = true;
      const test::Trained gpu = test::train({"1f1b"}, shape, options);
      expect_close(gpu.losses, cpu.losses, 1e-5);
      expect_close(gpu.norms, cpu.norms, 1e-4);
      EXPECT_EQ(gpu.peaks, gpu.predicted);
    }
}

TEST_F(CudaTraining, EverySchedulePlaysOnPartitionsAsOneRankDoes) {
  const ModelShape shape = test::shape_of(ModelFamily::llama, true);
  test::TrainOptions options{.steps = 3, .gpu = true};
  const test::Trained alone = test::train({"1f1b"}, shape, options);
  const std::vector<test::Case> cases = {
      {"1f1b", 4},   {"gpipe", 4}, {"interleaved-1f1b", 4}, {"zb-h1", 4},      {"zb-v", 4},
      {"v-half", 4}, {"v-min", 4}, {"dualpipe", 2},         {"seq1f1b", 4, 2}, {"zb-v", 4, 4}};
  for (const test::Case& c : cases)
    for (const int partitions : {0, c.devices}) {
      SCOPED_TRACE(c.schedule);
      options.partitions = partitions;
      const test::Trained trained = test::train(c, shape, options);
      expect_close(trained.losses, alone.losses, 1e-5);
      expect_close(trained.norms, alone.norms, 1e-4);
      EXPECT_EQ(trained.peaks, trained.predicted);
    }
}

TEST_F(CudaTraining, DeferredValidationAndNarrowStatesGoOn) {
  const ModelShape shape = test::shape_of(ModelFamily::llama, false);
  test::TrainOptions options{.steps = 6, .gpu = true};
  const test::Trained plain = test::train({"1f1b", 2}, shape, options);
  options.deferred = true;
  const test::Trained deferred = test::train({"1f1b", 2}, shape, options);
  expect_close(deferred.losses, plain.losses, 1e-5);
  options.deferred = false;
  options.narrow = true;
  test::Case narrow{"1f1b", 2};
  narrow.dtype = NumberType::bfloat16;
  const test::Trained small = test::train(narrow, shape, options);
  EXPECT_NEAR(small.losses.back(), plain.losses.back(), 0.02 * plain.losses.back());
}

// What a run says that may have so many bytes more than are held already.
std::string said_with(std::int64_t bytes, const ModelShape& shape,
                      const test::TrainOptions& options) {
  struct Limit {
    explicit Limit(std::int64_t more) {
      c10::cuda::CUDACachingAllocator::emptyCache();
      const cuda::MemoryUse use = cuda::memory_use(0);
      c10::cuda::CUDACachingAllocator::setMemoryFraction(
          static_cast<double>(use.reserved + more) / static_cast<double>(use.total), 0);
    }
    ~Limit() { c10::cuda::CUDACachingAllocator::setMemoryFraction(1.0, 0); }
  };
  const Limit limit(bytes);
  try {
    test::train({"1f1b"}, shape, options);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::temporary);
    return error.what();
  }
  return "";
}

TEST_F(CudaTraining, AFullGpuIsToldByClass) {
  const test::TrainOptions options{.microbatches = 1, .global_batch_size = 256, .gpu = true};
  ModelShape shape = test::shape_of(ModelFamily::llama, false);
  shape.dim = 512;
  const auto held = static_cast<double>(cuda::memory_use(0).allocated) / (1 << 30);
  const std::string said = said_with(1 << 29, shape, options);
  for (const char* part :
       {"out of GPU memory", "weights", "gradients", "optimizer", "recompute.level"})
    EXPECT_NE(said.find(part), std::string::npos) << said;
  EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  // Most of it is what the forward that failed had stashed.
  double stash = 0, rest = 0;
  const std::size_t at = said.find("activations ");
  ASSERT_NE(at, std::string::npos) << said;
  ASSERT_EQ(std::sscanf(said.c_str() + at, "activations %lf, buffers, workspace and rounding %lf",
                        &stash, &rest),
            2)
      << said;
  EXPECT_GT(stash, rest - held) << said;  // cuBLAS keeps room for every stream there was
  EXPECT_GE(rest, 0) << said;
}

}  // namespace
}  // namespace sluice
