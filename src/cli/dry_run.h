// The memory and the traffic of a run, computed without running it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/run_setup.h"
#include "cost/traffic.h"

namespace sluice::cli {

// Bytes by class, for the ranks at one place of the pipeline: what each of them needs, or the most
// that one of them needs.
struct RankMemory {
  std::vector<int> ranks;
  std::vector<int> stages;
  std::vector<std::int64_t> layers;  // of each of its stages
  std::int64_t weights = 0, gradients = 0, optimizer = 0;
  std::int64_t stash = 0;      // its peak, exactly as the run will measure it
  std::int64_t buffers = 0;    // between stages, at most
  std::int64_t workspace = 0;  // inside an op, estimated
  std::int64_t reduction = 0;  // gradients on their way between data ranks
  std::int64_t rollback = 0;   // the copy that deferred validation goes back to
  Traffic traffic;             // of a step

  std::int64_t total() const {
    return weights + gradients + optimizer + stash + buffers + workspace + reduction + rollback;
  }
};
// By device of the pipeline.
std::vector<RankMemory> memory_by_rank(const RunSetup& setup);

// What a rank needs beside weights, gradients and optimizer states.
struct BesideWeights {
  std::int64_t reduction = 0;  // all gradients packed to be sent, and others' pieces of its own
  std::int64_t rollback = 0;   // the copy that deferred validation keeps
};
BesideWeights beside_weights(const TrainerOptions& options, const Schedule& schedule,
                             const WeightBytes& held);

// Throws UserError where weights, gradients and optimizer alone are more than this machine's memory
// and swap: such a run would allocate until it is killed.
void check_weights_fit(const RunSetup& setup);

// As a table in MiB with remarks under it, or as a JSON object. `resume` has remarks on the
// checkpoint that the run would resume from.
std::string dry_run_text(const RunSetup& setup, const std::vector<std::string>& resume);
std::string dry_run_json(const RunSetup& setup, const std::vector<std::string>& resume);

}  // namespace sluice::cli
