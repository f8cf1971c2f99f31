// The data ranks of a run as the devices that share a batch: what sequences cost there, and how
// many tokens each rank may have.
#pragma once

#include <string>
#include <vector>

#include "sluice/plan/flexsp/prices.h"
#include "sluice/plan/run_times.h"

namespace sluice::flexsp {

struct RunCluster {
  Cluster cluster;
  std::vector<ExcludedDegree> excluded;  // none of a strategy that has one degree
  TokenShare most;  // that a rank may have of a microbatch, and the largest degree
};

// Times are those of the run's costs; memory is the run's own arithmetic (plan/run_memory.h). A
// rank has at most as many tokens as parallelism.device_memory_mib leaves room for, or, without
// caps, as many as full microbatches of parallelism.num_microbatches have. Throws UserError where
// the costs have no flexsp section, no degree can be used, or a cap leaves no room.
RunCluster run_cluster(const RunPlan& plan, const RunTimes& times);

// "1, 2, 4 data ranks".
std::string ranks_text(const std::vector<int>& degrees);

// What the device that needs most takes with as many tokens as full microbatches have, as a line:
// without any, and for each.
struct MemoryLine {
  double state_bytes = 0;
  double stash_bytes_per_token = 0;
};
MemoryLine memory_line(const RunPlan& plan);

}  // namespace sluice::flexsp
