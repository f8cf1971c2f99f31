// What data ranks exchange in a step: gradients before the update, weights after it.
//
// Of D = replicate x shard data ranks each owns 1/D of the rows of every weight while gradients are
// added: it is sent the D pieces of them and adds these in ascending rank order, in fp32. The ranks
// that update the same rows (the replicas of a shard) then exchange the sums, and the ranks of a
// replica the rows that each has updated. Both go in buckets of several weights, whose size changes
// no bit. Elements that a rank hands to others, where rows divide evenly: of gradients (D-1)/D and
// (replicate-1)/D, of weights (shard-1)/shard.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/mesh.h"
#include "comm/tensors/group.h"
#include "optim/optimizer.h"

namespace sluice {

class DataParallel {
 public:
  // Both outlive it.
  DataParallel(const Mesh& mesh, Traffic& traffic, std::int64_t bucket_bytes)
      : mesh_(mesh), traffic_(traffic), bucket_bytes_(bucket_bytes) {}

  // Of a weight with so many rows, those that this rank updates: all, with one shard.
  RowRange own_rows(std::int64_t rows) const;

  // Starts to add up the gradients of `weights` and does not wait. Every data rank begins with the
  // same weights in the same order; nobody changes the gradients until they are finished.
  void begin_sums(std::span<const Weight> weights);
  // Waits for all that was begun: the own rows of every gradient are then sums over the data ranks,
  // and its other rows worthless.
  void finish_sums();

  // The updated own rows of every weight -> all rows, on every data rank.
  void gather_values(std::span<const Weight> weights);

 private:
  // Weights that travel as one message between each two ranks.
  struct Bucket {
    std::vector<Weight> weights;
    std::vector<at::Tensor> sent;    // by rank
    std::vector<at::Tensor> pieces;  // by rank, received
    std::vector<Request> requests;
  };

  int num_data_ranks() const { return mesh_.shape().data(); }
  // The rows whose gradients a data rank adds up.
  RowRange summed_rows(int data_rank, std::int64_t rows) const;
  std::vector<Bucket> buckets_of(std::span<const Weight> weights) const;
  void exchange_sums(Bucket& bucket);
  void post(Bucket& bucket, Communicator& group, TrafficClass traffic, const char* label);

  const Mesh& mesh_;
  Traffic& traffic_;
  std::int64_t bucket_bytes_;
  std::vector<Bucket> under_way_;
};

}  // namespace sluice
