// A global batch as it was planned: its microbatches, their groups, and what each is to take.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/run/batch_plan.h"

namespace sluice::flexsp {

struct PlannedGroup {
  SequenceGroup group;  // numbers within the batch, ascending
  std::int64_t tokens = 0;
  double seconds = 0, all_to_all_seconds = 0;
  double bytes = 0;  // of each of its devices, states included
};

struct PlannedMicrobatch {
  std::vector<PlannedGroup> groups;  // largest first; some may be empty
  double seconds = 0;                // of its slowest group
};

struct PlannedBatch {
  std::vector<PlannedMicrobatch> microbatches;
  double seconds = 0;  // one microbatch after the other

  BatchPlan plan() const;
};

}  // namespace sluice::flexsp
