// Samples of a dataset as the microbatches of a step.
#pragma once

#include <cstdint>
#include <vector>

#include "data/dataset.h"
#include "model/stage.h"

namespace sluice {

struct GlobalBatch {
  std::vector<Microbatch> microbatches;
  std::int64_t num_targets = 0;  // tokens with a loss, over all microbatches; may be 0
};

// The samples [first_sample, first_sample + num_sequences), dealt in order. REQUIRES: num_sequences
// is a multiple of num_microbatches.
GlobalBatch load_batch(const Dataset& data, std::int64_t first_sample, std::int64_t num_sequences,
                       int num_microbatches);

}  // namespace sluice
