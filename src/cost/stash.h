// Bytes that the ops of a model leave behind, as pure functions of shape, tokens and recomputation
// level. The model asserts that it keeps exactly these, so the simulator's memory is the run's.
#pragma once

#include <cstdint>

#include "cost/model_shape.h"

namespace sluice {

struct StashQuery {
  ModelShape shape;
  RecomputeLevel level = RecomputeLevel::none;
  std::int64_t tokens = 0;          // of the slice, over all sequences of the microbatch
  std::int64_t element_bytes = 4;   // of an activation
  std::int64_t gradient_bytes = 4;  // of a weight's; only temporaries (workspace.h) depend on it
  bool sliced = false;              // more than one slice: keys and values must stay for later ones
  std::int64_t tensor = 1;          // ranks that share a layer; what one of them keeps
  bool sequence_norms = false;      // they divide the tokens between the products
  bool gpu = false;
  bool head_in_forward = false;  // F adds to the gradients of the head's norm and output at once

  // Tokens that a rank has between the products. REQUIRES: they divide.
  std::int64_t own_tokens() const { return sequence_norms ? tokens / tensor : tokens; }
};

struct StashBytes {
  std::int64_t after_f = 0;  // from the end of F to the end of I
  std::int64_t after_i = 0;  // from the end of I to the end of W
};

// One transformer block.
StashBytes block_stash(const StashQuery& query);
// Final norm, output projection and loss. An embedding keeps nothing: token numbers are the step's
// batch, which is there throughout.
StashBytes head_stash(const StashQuery& query);

// Gradients of keys and values of one block, kept in fp32 from the first I of a sliced microbatch
// to its last: of the slice's tokens; the last slice's are never kept.
std::int64_t key_value_gradient_bytes(const StashQuery& query);

}  // namespace sluice
