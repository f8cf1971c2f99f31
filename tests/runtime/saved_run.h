// A small run of two ranks whose checkpoints hold values that tell the step, the tensor and the
// row.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "sluice/runtime/files/checkpoint.h"
#include "sluice/runtime/files/checkpoint_folder.h"

namespace sluice::test {

// Rows 0..2 of "embedding" and all of "scale" are rank 0's; rows 3..4 and "head" are rank 1's.
inline std::vector<TensorPiece> pieces_of(int rank) {
  const TensorSpec embedding{"embedding", Dtype::f32, {5, 3}};
  if (rank == 0)
    return {{embedding, rows_of(embedding, 0, 3)}, whole_tensor({"scale", Dtype::f64, {}})};
  return {whole_tensor({"head", Dtype::bf16, {2, 2}}), {embedding, rows_of(embedding, 3, 5)}};
}

// Rows [begin, end) of a tensor as saved at a step.
inline std::vector<std::byte> content(const TensorSpec& tensor, std::int64_t step,
                                      std::int64_t begin, std::int64_t end) {
  const auto size = tensor_bytes(tensor.dtype, tensor.shape).value();
  std::vector<std::byte> all(size);
  for (std::size_t i = 0; i < size; ++i)
    all[i] =
        static_cast<std::byte>(i * 7 + static_cast<std::size_t>(step) * 31 + tensor.name.size());
  const auto row = size / static_cast<std::size_t>(num_rows(tensor));
  return {all.begin() + static_cast<std::ptrdiff_t>(row) * begin,
          all.begin() + static_cast<std::ptrdiff_t>(row) * end};
}

inline CheckpointInfo info_of(std::int64_t step) {
  CheckpointInfo info;
  info.step = step;
  info.mesh.pipeline = 2;
  info.schedule = "v-half";
  info.config = "steps = 100\n";
  info.state = R"({"data_position":)" + std::to_string(step * 4) + "}";
  return info;
}

inline void write_shard(CheckpointFolder& folder, int rank, std::int64_t step) {
  const std::vector<TensorPiece> pieces = pieces_of(rank);
  std::vector<std::byte> bytes;
  folder.write_shard(step, pieces, [&](std::size_t i) {
    bytes = content(pieces[i].tensor, step, pieces[i].box.rows.begin, pieces[i].box.rows.end);
    return std::span<const std::byte>(bytes);
  });
}

// A run that resumed at `start_step` and saves `step`.
inline void save(FileSystem& files, const std::string& path, std::int64_t step,
                 std::int64_t start_step, int keep_latest_k = 0) {
  CheckpointFolder first(files, {path, 0, 2, start_step, keep_latest_k});
  CheckpointFolder second(files, {path, 1, 2, start_step, keep_latest_k});
  write_shard(first, 0, step);
  write_shard(second, 1, step);
  first.commit(info_of(step));
}

inline void expect_contents(const FoundCheckpoint& found) {
  const Checkpoint checkpoint(found.folder);
  EXPECT_EQ(checkpoint.manifest().info, info_of(found.step));
  ASSERT_EQ(checkpoint.tensors().size(), 3U);
  for (const TensorSpec& tensor : checkpoint.tensors()) {
    std::vector<std::byte> bytes(tensor_bytes(tensor.dtype, tensor.shape).value());
    checkpoint.read_box(tensor, whole_box(tensor), bytes);
    EXPECT_EQ(bytes, content(tensor, found.step, 0, num_rows(tensor))) << tensor.name;
  }
}

}  // namespace sluice::test
