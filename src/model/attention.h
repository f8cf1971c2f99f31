// Attention over slices and documents. A query sees only keys of its own document: all of those in
// earlier slices, and those in its own slice up to its own position. With attention both ways it
// sees all of them, and there must be one slice. Each part is one call. Parts are merged by their
// log-sum-exp, and the backward of every part takes the merged output and statistics, so memory
// stays linear in the length and nothing is kept twice.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

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
AttentionOutput attention(const AttentionInput& input, const Documents& documents,
                          const SliceBounds& bounds);

// Returns dq of this slice. Adds to key_gradients[j] and value_gradients[j] (fp32, j = 0..c) what
// this slice's queries contribute. These may be undefined where one call computes them whole.
at::Tensor attention_backward(const at::Tensor& d_out, const AttentionInput& input,
                              const AttentionOutput& output, const Documents& documents,
                              const SliceBounds& bounds, std::vector<at::Tensor>& key_gradients,
                              std::vector<at::Tensor>& value_gradients);

}  // namespace sluice
