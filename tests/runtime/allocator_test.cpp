#include "sluice/runtime/allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace sluice {
namespace {

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

}  // namespace
}  // namespace sluice
