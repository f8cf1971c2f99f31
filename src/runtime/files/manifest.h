// The manifest of a checkpoint: what was saved, in which file every part of every tensor lies, and
// the size and hash of each file. A folder whose manifest verifies, and whose files are as it says,
// is whole.
//
//   {
//    "schema": "sluice.checkpoint",
//    "format": 4,
//    "step": 20,
//    "mesh": {"data": 1, "pipeline": 2, "tensor": 1, "sequence": 1,
//             "order": "pipeline,data,tensor"},
//    "schedule": "v-half",
//    "config": "[model]\nshape = ...",                                  (the whole of it, as TOML)
//    "state": {"run": "1a2b3c4d", "folder": "checkpoints", "gradient_norm": 1.5},
//                                                                  (the caller's; see run_id.h)
//    "files": [
//     {"name": "rank-00000.safetensors", "bytes": 4096, "sha256": "9a..."}, ...
//    ],
//    "tensors": [           (indices of the first two dimensions, the end not included; a tensor
//     {"name": "w",          of one dimension has no columns)
//      "dtype": "F32", "shape": [256, 8], "rows": [0, 128], "columns": [0, 8], "file": "..."},
//     ...
//    ],
//    "sha256": "c1..."                     (of every byte before this line)
//   }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/runtime/files/pieces.h"

namespace sluice {

struct CheckpointMesh {
  std::int64_t data = 1;
  std::int64_t pipeline = 1;
  std::int64_t tensor = 1;
  std::int64_t sequence = 1;
  std::string order = "pipeline,data,tensor";  // of the axes: ranks differ in the last one first
  bool operator==(const CheckpointMesh&) const = default;
};

// What the training loop says about a checkpoint.
struct CheckpointInfo {
  std::int64_t step = 0;
  CheckpointMesh mesh;
  std::string schedule;      // its name, or the text of one read from a file
  std::string config;        // the resolved configuration, as TOML
  std::string state = "{}";  // a JSON object of the caller's: which run saved it
  bool operator==(const CheckpointInfo&) const = default;
};

struct Manifest {
  CheckpointInfo info;
  std::vector<ShardRecord> shards;  // by rank
  bool operator==(const Manifest&) const = default;
};

std::string shard_file_name(int rank);

// The text to write, and back. read_manifest trusts nothing: wrong hash, form, version, file name
// or tiling is a UserError bad_data; `path` is for its text.
std::string write_manifest(const Manifest& manifest);
Manifest read_manifest(std::string_view text, const std::string& path);

// One shard's part of a manifest: what a rank leaves for the one that writes the manifest. Sealed
// and read the same way.
std::string write_shard_record(const ShardRecord& shard, std::int64_t step);
ShardRecord read_shard_record(std::string_view text, std::int64_t step, const std::string& path);

}  // namespace sluice
