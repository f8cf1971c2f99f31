// What attention takes and gives, whichever kernels compute it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sluice/cuda/functions.h"

namespace sluice {

struct PackedDocuments;  // attention_packed.h

// The documents of each sequence of a microbatch: where they start, ascending, first 0.
struct Documents {
  std::vector<std::vector<std::int64_t>> starts;  // one list per sequence; empty: one document each
  std::shared_ptr<const PackedDocuments> packed = {};  // of the slice; on a GPU in half precision
  bool single() const { return starts.empty(); }
};

// A slice's position ranges: slice c holds [begin[c], begin[c + 1]).
using SliceBounds = std::vector<std::int64_t>;

struct AttentionInput {
  at::Tensor q;                    // (B, heads, n, head_dim) of this slice
  std::vector<at::Tensor> keys;    // (B, kv_heads, n_j, head_dim) of slices 0..c
  std::vector<at::Tensor> values;  // likewise
  bool both_ways = false;          // REQUIRES one slice
};

struct AttentionOutput {
  at::Tensor out;  // (B, heads, n, head_dim)
  at::Tensor lse;  // (B, heads, n), fp32
};
// The gradients of q, k and v of this slice, each the sum of `own` and `more`. What this slice's
// queries contribute to the keys and values of earlier slices is added to their gradients, as in
// attention_backward; undefined ones are created. What later slices have contributed to this
// slice's keys and values is in `more`.
struct AttentionGradients {
  cuda::HeadGradients own, more;
};

}  // namespace sluice
