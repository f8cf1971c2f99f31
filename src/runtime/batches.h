// Samples of a dataset as the microbatches of a step.
#pragma once

#include <cstdint>
#include <vector>

#include "data/dataset.h"
#include "model/stage.h"

namespace sluice {

struct GlobalBatch {
  std::vector<Microbatch> microbatches;
  std::int64_t num_targets = 0;  // tokens with a loss, over all data ranks; may be 0
};

// One of the pipelines that share a global batch: the first takes its first sequences, and so on.
struct DataShare {
  int index = 0;
  int count = 1;
};

// The share's part of the samples [first_sample, first_sample + num_sequences), dealt in order.
// REQUIRES: num_sequences is a multiple of the number of microbatches of all shares.
GlobalBatch load_batch(const Dataset& data, std::int64_t first_sample, std::int64_t num_sequences,
                       int num_microbatches, const DataShare& share = {});

}  // namespace sluice
