// The manifest of a checkpoint: what was saved, in which file every row of every tensor lies, and
// the size and hash of each file. A folder whose manifest verifies, and whose files are as it says,
// is whole.
//
//   {
//    "schema": "sluice.checkpoint",
//    "format": 2,
//    "step": 20,
//    "mesh": {"data": 1, "pipeline": 2, "tensor": 1, "sequence": 1},
//    "schedule": "v-half",
//    "config": "[model]\nshape = ...",                                  (the whole of it, as TOML)
//    "state": {...},                                                   (the caller's)
//    "files": [
//     {"name": "rank-00000.safetensors", "bytes": 4096, "sha256": "9a..."}, ...
//    ],
//    "tensors": [                          (rows of the first dimension, the end not included)
//     {"name": "wte.weight", "dtype": "F32", "shape": [256, 8], "rows": [0, 128], "file": "..."},
//     ...
//    ],
//    "sha256": "c1..."                     (of every byte before this line)
//   }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/files/safetensors.h"

namespace sluice {

struct CheckpointMesh {
  std::int64_t data = 1;
  std::int64_t pipeline = 1;
  std::int64_t tensor = 1;
  std::int64_t sequence = 1;
  bool operator==(const CheckpointMesh&) const = default;
};

// What the training loop says about a checkpoint.
struct CheckpointInfo {
  std::int64_t step = 0;
  CheckpointMesh mesh;
  std::string schedule;      // its name, or the text of one read from a file
  std::string config;        // the resolved configuration, as TOML
  std::string state = "{}";  // a JSON object of the caller's: random state, data position, ...
  bool operator==(const CheckpointInfo&) const = default;
};

// Rows [row_begin, row_end) of the first dimension of a whole tensor, as one shard holds them under
// the same name. A tensor without dimensions has the one row [0, 1).
struct TensorPiece {
  TensorSpec tensor;  // the whole one
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  bool operator==(const TensorPiece&) const = default;
};

TensorPiece whole_tensor(TensorSpec tensor);
std::int64_t num_rows(const TensorSpec& tensor);
TensorSpec stored_form(const TensorPiece& piece);  // the shape in the shard

struct ShardRecord {
  std::string file;  // rank-00000.safetensors
  std::uint64_t bytes = 0;
  std::string sha256;
  std::vector<TensorPiece> pieces;
  bool operator==(const ShardRecord&) const = default;
};

struct Manifest {
  CheckpointInfo info;
  std::vector<ShardRecord> shards;  // by rank
  bool operator==(const Manifest&) const = default;
};

std::string shard_file_name(int rank);

// Every row of every tensor in exactly one shard, or the text of the first problem: a name with two
// shapes or dtypes, a hole, an overlap.
std::string tiling_problem(const std::vector<ShardRecord>& shards);

// The text to write, and back. read_manifest trusts nothing: wrong hash, form, version, file name
// or tiling is a UserError bad_data; `path` is for its text.
std::string write_manifest(const Manifest& manifest);
Manifest read_manifest(std::string_view text, const std::string& path);

// One shard's part of a manifest: what a rank leaves for the one that writes the manifest. Sealed
// and read the same way.
std::string write_shard_record(const ShardRecord& shard, std::int64_t step);
ShardRecord read_shard_record(std::string_view text, std::int64_t step, const std::string& path);

}  // namespace sluice
