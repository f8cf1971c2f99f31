#include "runtime/allocator.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "comm/threads/threads.h"
#include "runtime/trained.h"

namespace sluice {
namespace {

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(TensorBlocks, WasteAtMostAnEighth) {
  for (std::size_t bytes = 1; bytes < (std::size_t{1} << 40); bytes += 1 + bytes / 7) {
    const std::size_t block = block_bytes(bytes);
    EXPECT_GE(block, bytes);
    EXPECT_EQ(block % 64, 0U) << bytes;
    EXPECT_LE(block, std::max<std::size_t>(512, bytes + bytes / 8)) << bytes;
    EXPECT_EQ(block_bytes(block), block) << bytes;
  }
}

TEST(TensorBlocks, AFreedOneIsTheNextTensors) {
  keep_freed_memory();
  const TensorMemory before = tensor_memory();
  at::Tensor tensor = at::zeros({1000, 131});
  const void* const place = tensor.data_ptr();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(place) % 64, 0U);
  EXPECT_EQ(tensor_memory().used_bytes - before.used_bytes, 524'288);
  tensor.reset();
  EXPECT_EQ(tensor_memory().used_bytes, before.used_bytes);
  EXPECT_EQ(tensor_memory().kept_bytes - before.kept_bytes, 524'288);
  EXPECT_EQ(at::empty({1000, 129}).data_ptr(), place);
  EXPECT_NE(at::empty({1000, 160}).data_ptr(), place);
}

TEST(TensorBlocks, ThatNobodyWantsGoBackToTheSystem) {
  keep_freed_memory();
  for (std::int64_t mebibytes = 1; mebibytes <= 64; mebibytes += mebibytes / 4 + 1)
    at::empty({mebibytes << 18});
  // Each size once: of all that were kept in turn, no more is left than twice the largest.
  EXPECT_LE(tensor_memory().kept_bytes, std::int64_t{2} * 64 << 20);
}

// Resident memory once grew by a tensor between stages in about every other step.
TEST(TensorBlocks, ManyStepsTakeNoMoreMemoryThanAFew) {
  constexpr int kFew = 30, kMany = 130;
  keep_freed_memory();
  ModelShape shape = test::shape_of(ModelFamily::gpt2, false);
  shape.layers = 2;
  shape.dim = 64;
  const Schedule schedule = test::lowered_schedule({.schedule = "1f1b", .devices = 2}, 2);
  TrainerOptions options;
  options.shape = shape;
  options.layers_per_stage = {1, 1};
  options.global_batch_size = 128;  // a tensor between stages has 64 x 16 x 64 floats: 256 KiB
  options.sequence_length = 16;
  const Dataset data(test::tokens(), {.sequence_length = 16, .vocab_size = 64});
  std::int64_t resident[2] = {}, blocks[2] = {};
  run_threads(2, {}, [&](Communicator& world) {
    at::set_num_threads(1);
    Trainer trainer(options, schedule, data, world);
    for (int step = 1; step <= kMany; ++step) {
      trainer.step(step);
      if (step != kFew && step != kMany) continue;
      world.barrier("all have taken it");
      if (world.rank() == 0) {
        resident[step == kMany] = resident_bytes();
        const TensorMemory memory = tensor_memory();
        blocks[step == kMany] = memory.used_bytes + memory.kept_bytes;
      }
      world.barrier("measured");
    }
  });
  EXPECT_LE(resident[1], resident[0] + resident[0] / 100);
  // Ranks may meet their peaks at the same moment later than in the first steps.
  EXPECT_LE(blocks[1], blocks[0] + (1 << 20));
  std::printf("resident after %d steps %.1f MB, after %d %.1f MB; blocks %.1f and %.1f MB\n", kFew,
              1e-6 * static_cast<double>(resident[0]), kMany,
              1e-6 * static_cast<double>(resident[1]), 1e-6 * static_cast<double>(blocks[0]),
              1e-6 * static_cast<double>(blocks[1]));
}

}  // namespace
}  // namespace sluice
