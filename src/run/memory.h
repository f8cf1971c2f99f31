// What the ranks of a run hold, as far as that follows from the plan without simulating it.
#pragma once

#include <cstdint>
#include <span>

#include "sluice/run/plan.h"

namespace sluice {

// What a rank of a device holds from start to end; `optimizer` is moments and masters, of the
// stages that it updates. Of sharded parameters: its own rows, and at most what it gathers of the
// others.
struct WeightBytes {
  std::int64_t weights = 0, gradients = 0, optimizer = 0;
  // What Optimizer::keep() copies: of the rows that the rank updates, masters or else weights, and
  // moments.
  std::int64_t kept = 0;
  // Of the gradients those that are held all the time; and, at most, sharded ones on their way.
  std::int64_t own_gradients = 0, messages = 0;

  std::int64_t total() const { return weights + gradients + optimizer; }
};
WeightBytes weight_bytes(const RunPlan& plan, int device);

// Buffers of gradients of each weight: as many as windows are added up at a time.
int accumulators_of(const RunPlan& plan, int device);

// What the same rank needs beside them.
struct BesideWeights {
  std::int64_t reduction = 0;  // all gradients packed to be sent, and others' pieces of its own
  std::int64_t rollback = 0;   // the copy that deferred validation keeps
};
BesideWeights beside_weights(const RunPlan& plan, const WeightBytes& held);

// What a rank sends to the next stage of so many tokens.
std::int64_t boundary_bytes(const RunPlan& plan, std::int64_t tokens);

// By device: what its tensors between stages take at most (cost/buffers.h).
std::vector<std::int64_t> buffer_bytes(const RunPlan& plan);

}  // namespace sluice
