// The weights of a model by name and shape, without a tensor of it: what a rank will allocate, and
// what a checkpoint of it must hold. The model's own lists are the same, which a test holds it to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/cost/model_shape.h"

namespace sluice {

struct ParameterShape {
  std::string name;
  std::vector<std::int64_t> shape;

  // The dimension that tensor ranks divide, and the least rows that one of them holds (a head of
  // keys or values); -1: each holds all of it.
  int divided = -1;
  std::int64_t least_rows = 1;

  std::int64_t count() const;                     // of its elements
  std::int64_t count(std::int64_t tensor) const;  // that one of so many tensor ranks holds
  std::int64_t rows(std::int64_t tensor) const;   // likewise
  // ... and of which it updates its share: the largest there is, among so many data ranks.
  std::int64_t shard_count(std::int64_t tensor, std::int64_t data) const;
};

// An optimizer's states are divided by blocks of rows: as many of each weight, whatever its size.
// The norm of the gradients adds up block by block, so that it does not depend on who holds which.
inline constexpr std::int64_t kRowBlocks = 64;
struct BlockRows {
  std::int64_t begin = 0, end = 0;
};
// Rows of block b, of all `rows`.
constexpr BlockRows block_rows(std::int64_t rows, std::int64_t b) {
  return {rows * b / kRowBlocks, rows * (b + 1) / kRowBlocks};
}
// Rows that part i of n has: those of blocks 64 i / n to 64 (i + 1) / n.
constexpr BlockRows share_rows(std::int64_t rows, std::int64_t i, std::int64_t n) {
  return {rows * (kRowBlocks * i / n) / kRowBlocks, rows * (kRowBlocks * (i + 1) / n) / kRowBlocks};
}

// The rows that one of several shard ranks updates: its share, or, of a weight that one shard rank
// owns as a whole, all or none. An owner below 0: there is none.
constexpr BlockRows shard_rows(std::int64_t rows, int shard, int shards, int owner) {
  if (owner < 0) return share_rows(rows, shard, shards);
  return {0, shard == owner ? rows : 0};
}
// The part of them that one of their replicas adds up. Rounded down, 64 (i r) / (s r) is 64 i / s:
// the parts of all replicas make up the shard's rows.
constexpr BlockRows summed_rows(std::int64_t rows, int shard, int shards, int replica, int replicas,
                                int owner) {
  if (owner < 0) return share_rows(rows, shard * replicas + replica, shards * replicas);
  return share_rows(shard == owner ? rows : 0, replica, replicas);
}

// A stage's: a run of layers, with the embedding before and the head behind where it has them. A
// tied head has a weight of its own, kept equal to the embedding's.
struct StageLayers {
  std::int64_t first = 0;
  std::int64_t end = 0;  // one past the last
  bool embedding = false;
  bool head = false;
};
std::vector<ParameterShape> stage_parameters(const ModelShape& shape, const StageLayers& layers);
// Of the whole model; a weight that head and embedding share counts once.
std::int64_t num_parameters(const ModelShape& shape);

}  // namespace sluice
