// Bytes that the ops of a model leave behind, as pure functions of shape, tokens and recomputation
// level. The model asserts that it keeps exactly these, so the simulator's memory is the run's.
#pragma once

#include <cstdint>

#include "cost/model_shape.h"

namespace sluice {

struct StashQuery {
  ModelShape shape;
  RecomputeLevel level = RecomputeLevel::none;
  std::int64_t tokens = 0;         // of the slice, over all sequences of the microbatch
  std::int64_t element_bytes = 4;  // of an activation
  bool sliced = false;             // more than one slice: keys and values must stay for later ones
};

struct StashBytes {
  std::int64_t after_f = 0;  // from the end of F to the end of I
  std::int64_t after_i = 0;  // from the end of I to the end of W
};

// One transformer block.
StashBytes block_stash(const StashQuery& query);
// Token embedding: the token numbers after F, the output gradient too after I.
StashBytes embedding_stash(const StashQuery& query);
// Final norm, output projection and loss.
StashBytes head_stash(const StashQuery& query);

// Gradients of keys and values of one block, kept in fp32 from the first I of a sliced microbatch
// to its last: `tokens` of the whole microbatch but its last slice.
std::int64_t key_value_gradient_bytes(const ModelShape& shape, std::int64_t tokens);

}  // namespace sluice
