// Measures what the ops of a run take on this machine: seconds, bytes and links, for the simulator.
#pragma once

#include <functional>
#include <string>

#include "sluice/comm/communicator.h"
#include "sluice/cost/costs.h"
#include "sluice/model/stage.h"

namespace sluice {

struct ProfileOptions {
  int threads_per_rank = 1;  // those of the training that is to be predicted
  int rounds = 7;            // at least; a round is one step's program of every rank
  double seconds = 0.3;      // at least, of measured rounds
  std::function<void(const std::string&)> on_progress;  // rank 0, every few seconds; may be empty
};

// Every rank calls it and gets the same result. Each rank runs its own program through the
// executor, on random tokens and with messages that are always there already, so caches, allocator
// and kernels are those of a real step. All ranks continue until the last one has measured, so each
// op is timed with its neighbours busy. The same is done with backwards in their other form, fused
// or split, so that F, I, W and B are all known. Last, messages are timed between the ranks that
// exchange any, pair by pair.
Costs profile_ops(const RunPlan& plan, const Machine& machine, Communicator& world,
                  const ProfileOptions& profile = {});

}  // namespace sluice
