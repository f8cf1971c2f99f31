// What data ranks exchange in a step: gradients before the update, weights after it.
//
// There are D = replicate x shard data ranks. Each of them sums 1/D of the rows of every gradient:
// it receives D pieces and adds them in ascending rank order, in fp32. Ranks that update the same
// rows (the replicas of a shard) then exchange these sums. After the update, the ranks of a replica
// exchange the rows that each has updated. Messages hold buckets of several weights; the bucket
// size does not change a bit of the result. Where rows divide evenly, a rank sends (D-1)/D +
// (replicate-1)/D of its gradients and (shard-1)/shard of its weights.
//
// Gradients of sharded parameters are sums over the shard ranks already, of the own rows. Only the
// replicas of a shard are left to add up, and no weights are exchanged.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/comm/mesh.h"
#include "sluice/comm/tensors/group.h"
#include "sluice/optim/weight.h"

namespace sluice {

class DataParallel {
 public:
  // `sharded`: weights hold the own rows only. REQUIRES: mesh and traffic outlive it.
  DataParallel(const Mesh& mesh, Traffic& traffic, std::int64_t bucket_bytes, bool sharded = false)
      : mesh_(mesh), traffic_(traffic), bucket_bytes_(bucket_bytes), sharded_(sharded) {}

  // The rows that this rank updates, of a weight with `rows` of them; all of them with one shard.
  // `owner`: the shard rank that updates all of them, or -1.
  RowRange own_rows(std::int64_t rows, int owner = -1) const;

  // Starts to sum the gradients of `weights` and does not wait. Every data rank begins the same
  // weights in the same order, and no rank changes the gradients until they are finished.
  void begin_sums(std::span<const Weight> weights);
  // Waits for all that was begun. Then the own rows of every gradient are sums over the data ranks;
  // its other rows must not be used.
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

  // The ranks that add up gradients, and one of them as a data rank.
  Communicator& adding_ranks() const { return sharded_ ? mesh_.replica_group() : mesh_.data(); }
  // The rows whose gradients a data rank adds up.
  RowRange rows_summed_by(int shard, int replica, const Weight& weight) const;
  RowRange rows_summed_by(int adding_rank, const Weight& weight) const;
  std::vector<Bucket> buckets_of(std::span<const Weight> weights) const;
  void exchange_sums(Bucket& bucket);
  void post(Bucket& bucket, Communicator& group, TrafficClass traffic, const char* label);

  const Mesh& mesh_;
  Traffic& traffic_;
  std::int64_t bucket_bytes_;
  bool sharded_;
  std::vector<Bucket> under_way_;
};

}  // namespace sluice
