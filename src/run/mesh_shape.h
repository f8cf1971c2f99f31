// The mesh: the ranks of a run laid out as pipeline x data x tensor. Tensor ranks, which talk most,
// are next to each other, then data ranks, which may share sequences; pipeline ranks are farthest
// apart:
//
//   rank = (pipeline * data_degree + data) * tensor_degree + tensor
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

  constexpr int data() const { return replicate * shard; }
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
  return {.data = rank / shape.tensor % shape.data(),
          .pipeline = rank / shape.tensor / shape.data(),
          .tensor = rank % shape.tensor};
}

constexpr int rank_of(const MeshPlace& place, const MeshShape& shape) {
  return (place.pipeline * shape.data() + place.data) * shape.tensor + place.tensor;
}

}  // namespace sluice
