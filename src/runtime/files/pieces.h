// Pieces of tensors: what one shard of a checkpoint holds of a tensor is a box, a range of rows by
// a range of columns, under the tensor's name. So tensor parallelism, which cuts rows or columns,
// and a sharded optimizer, which cuts the rows of what is left, save what they have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/runtime/files/safetensors.h"

namespace sluice {

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;  // not included
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Rows are indices of the first dimension, columns of the second; all further dimensions are
// whole. A tensor without a first or second dimension has one row or column: [0, 1).
struct Box {
  Range rows;
  Range columns;
  bool empty() const { return rows.size() == 0 || columns.size() == 0; }
  bool operator==(const Box&) const = default;
};

struct TensorPiece {
  TensorSpec tensor;  // the whole one
  Box box;
  bool operator==(const TensorPiece&) const = default;
};

std::int64_t num_rows(const TensorSpec& tensor);
std::int64_t num_columns(const TensorSpec& tensor);
Box whole_box(const TensorSpec& tensor);
Box rows_of(const TensorSpec& tensor, std::int64_t begin, std::int64_t end);  // all columns
TensorPiece whole_tensor(TensorSpec tensor);
Box intersection(const Box& a, const Box& b);  // an empty one where they do not meet

// The shape in the shard. Throws nothing; REQUIRES: the box is inside the tensor.
TensorSpec stored_form(const TensorPiece& piece);
// Why the piece cannot be stored, or "": a box outside the tensor, or one that does not end at
// whole bytes.
std::string piece_problem(const TensorPiece& piece);
// "rows [0, 3) of tensor "x"", with its columns where they are not all.
std::string piece_text(const TensorPiece& piece);

struct ShardRecord {
  std::string file;  // rank-00000.safetensors
  std::uint64_t bytes = 0;
  std::string sha256;
  std::vector<TensorPiece> pieces;
  bool operator==(const ShardRecord&) const = default;
};

// Every element of every tensor in exactly one shard, or the text of the first problem: a name with
// two shapes or dtypes, or twice in a shard, a hole, an overlap. Time n log n for n pieces.
std::string tiling_problem(const std::vector<ShardRecord>& shards);

}  // namespace sluice
