// The mesh: the ranks of a run laid out as data x pipeline x tensor, tensor ranks next to each
// other and data ranks farthest apart:
//
//   rank = (data * pipeline_degree + pipeline) * tensor_degree + tensor
//
// The data axis is replicate x shard, shard ranks next to each other: optimizer states are divided
// among the shard ranks and repeated on the replicate ranks.
#pragma once

namespace sluice {

struct MeshShape {
  int replicate = 1;
  int shard = 1;
  int pipeline = 1;
  int tensor = 1;

  int data() const { return replicate * shard; }
  int size() const { return data() * pipeline * tensor; }
  bool operator==(const MeshShape&) const = default;
};

// Where a rank stands; data = replicate * shard_degree + shard.
struct MeshPlace {
  int data = 0;
  int pipeline = 0;
  int tensor = 0;
  bool operator==(const MeshPlace&) const = default;
};

constexpr MeshPlace place_of(int rank, const MeshShape& shape) {
  return {.data = rank / shape.tensor / shape.pipeline,
          .pipeline = rank / shape.tensor % shape.pipeline,
          .tensor = rank % shape.tensor};
}

constexpr int rank_of(const MeshPlace& place, const MeshShape& shape) {
  return (place.data * shape.pipeline + place.pipeline) * shape.tensor + place.tensor;
}

}  // namespace sluice
