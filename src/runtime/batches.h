// Samples of a dataset as the microbatches of a step.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "sluice/data/dataset.h"
#include "sluice/model/stage.h"
#include "sluice/run/plan.h"

namespace sluice {

struct GlobalBatch {
  std::vector<Microbatch> microbatches;
  // Over all data ranks, without padding:
  std::int64_t num_tokens = 0;
  std::int64_t num_targets = 0;  // tokens with a loss; may be 0
  double squared_lengths = 0;    // of all documents, added up: attention's work grows with it
};

// Which samples of a dataset a batch holds: `sequences` of them, over all data ranks. A sequence in
// the place of sample `end` or of a later one is padding: an earlier sample again, without targets.
struct BatchRange {
  std::int64_t first = 0;
  std::int64_t sequences = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
};

// One of the pipelines that share a global batch: the first takes its first sequences, and so on.
struct DataShare {
  int index = 0;
  int count = 1;
};

// The share's part of the samples in the range, dealt in order and cut at `bounds`. REQUIRES: first
// < end, and the sequences are a multiple of the number of microbatches of all shares.
GlobalBatch load_batch(const Dataset& data, const BatchRange& range, int num_microbatches,
                       const DataShare& share = {}, const SliceBounds& bounds = {});

// The lengths of the samples in the range; at the end of the samples there are fewer.
std::vector<std::int64_t> lengths_of(const Dataset& data, const BatchRange& range);

// By degree, the groups that a rank may share sequences with (BatchPlan).
using SequenceGroups = std::map<int, TensorGroup>;

// Which part of a planned batch a rank computes.
struct SequenceShare {
  int rank = 0;                      // of the data axis
  int tensor = 1;                    // ranks among which tokens are divided
  SequenceGroups* groups = nullptr;  // outlive the batch; none are needed where every degree is 1
};

// The same of unequal sequences, as a plan deals them. A microbatch is one row of a group's
// sequences, one after the other and kept apart, padded (share_of) with tokens that have no
// targets; of it the rank has its part. It may have no tokens. REQUIRES: the plan fits the range.
GlobalBatch load_sequences(const Dataset& data, const BatchRange& range, const BatchPlan& plan,
                           const SequenceShare& share = {});

}  // namespace sluice
