// What others do with a batch: groups of one degree, and tensor with context parallelism. Sequences
// are packed into bins, longest first, each into the bin with the least room left that still holds
// it; a bin has at most `fill` of what its devices hold, or the longest sequence, if that is more.
// As many bins as there are groups make a microbatch, in the order in which they were opened, and a
// microbatch takes as long as its slowest bin.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "sluice/plan/flexsp/planned_batch.h"
#include "sluice/plan/flexsp/prices.h"

namespace sluice::flexsp {

// Everywhere below. REQUIRES: there are sequences, all of positive (padded) lengths; fill is above
// 0 and at most 1.

// Groups of one degree. Nothing where no group of the cluster has it, or where it does not hold the
// longest sequence.
std::optional<PlannedBatch> fixed_degree(const Cluster& cluster,
                                         std::span<const std::int64_t> lengths, int degree,
                                         double fill);

struct Adapted {
  int degree = 1;
  PlannedBatch batch;
};

// The fastest of these, chosen anew for every batch (FlexSP's authors call it BatchAda); of equally
// fast ones, the smallest degree. Nothing where none holds the longest sequence.
std::optional<Adapted> batch_ada(const Cluster& cluster, std::span<const std::int64_t> lengths,
                                 double fill);

// As Megatron trains: every sequence is divided among t tensor ranks, neighbours within a node, and
// c context ranks; devices / (t c) replicas each take a bin. A bin of T tokens takes
//
//   compute   (a1 sum s^2 + a2 T) / (t c)
//   tensor    X T/c (t-1)/t / v_t. With norms shared along the sequence, a layer has 4 all-gathers
//             and 4 reduce-scatters, forward and backward, of T/c x dim numbers of two bytes. That
//             is what X = all_to_all_bytes_per_token = 8 x 2 x layers x dim counts.
//   context   max(0, ring - a1 sum s^2 / (t c)), ring = 3/4 X/t T (c-1)/c / v. Keys and values go
//             round the ring once forward and once backward, where their gradients follow: 3 x 2
//             tensors of T/c x dim/t numbers a layer, in c-1 steps of c. They hide behind attention
//             as far as that lasts.
//
// v_t is the bandwidth of degree t. v is that of degree t c where this is within a node. A larger
// ring is as slow as its step from node to node, which t rings make at once through what one node
// sends: v = R v_2R / 2 / t with R ranks in a node, since in an all-to-all of two nodes each rank
// sends half of its bytes to the other one.
//
// The states are those of ZeRO-1: weights and gradients, a quarter of them, are divided by t, the
// optimizer's by all devices. So b1, which is what sharded parameters and launches cost a
// microbatch, is paid once per batch, for gradients and new weights.
struct TensorContextCosts {
  double model_state_bytes = 0;  // of the whole model, on one device: 16 bytes a weight
  int ranks_per_node = 8;
  double fill = 0.9;
};

struct TensorContext {
  int tensor = 1, context = 1;
  int num_microbatches = 0;
  double seconds = 0;
};

// The fastest powers of two (t, c) for this batch; nothing where none has memory for the longest
// sequence. Devices have the memory that the cluster's capacity and costs stand for. t divides the
// heads and is at most ranks_per_node. (t, c) whose bandwidth is not known are left out.
std::optional<TensorContext> tensor_context(const Cluster& cluster,
                                            std::span<const std::int64_t> lengths,
                                            const TensorContextCosts& own);

}  // namespace sluice::flexsp
