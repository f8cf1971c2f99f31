// Measures what sequences cost on the ranks of a run, for those who plan batches
// (cost/sequence_costs.h).
#pragma once

#include "sluice/comm/communicator.h"
#include "sluice/cost/sequence_costs.h"
#include "sluice/cost/sequence_fit.h"
#include "sluice/model/stage.h"
#include "sluice/runtime/profiling.h"

namespace sluice {

struct SequenceProfile {
  SequenceCosts costs;  // without what memory takes, which is not measured
  SequenceFit fit;
  int points = 0;
};

// Every rank calls it and gets the same result. Each runs the ops of one microbatch through the
// executor, as in profile_ops, for sequences of many lengths, one or several in a row; the device
// that takes longest counts. Then every group of 2, 4, ... data ranks exchanges heads for tokens as
// a layer does. REQUIRES: unequal sequences (plan.ragged()).
SequenceProfile profile_sequences(const RunPlan& plan, const Machine& machine, Communicator& world,
                                  const ProfileOptions& profile = {});

}  // namespace sluice
