// What a checkpoint holds, whatever the mesh and the schedule it was saved under: the hash of every
// whole tensor, however it is cut over the shards.
#pragma once

#include <string>
#include <vector>

#include "sluice/runtime/files/checkpoint.h"

namespace sluice {

struct TensorDigest {
  TensorSpec tensor;
  std::string sha256;  // of its bytes, first row to last
};

struct CheckpointDigest {
  std::vector<TensorDigest> weights;  // by name; a tied head is stored once, as the embedding
  std::vector<TensorDigest> states;   // the optimizer's, named WEIGHT/STATE
  std::vector<TensorDigest>
      older;  // weights as they were N updates before: WEIGHT/before-N, WEIGHT/predicted
  std::string weights_sha256;  // of the bytes of all weights, one after the other, by name
};

// Reads every tensor once, a few megabytes at a time.
CheckpointDigest digest(const Checkpoint& checkpoint);

}  // namespace sluice
