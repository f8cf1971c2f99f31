// Attention over slices and documents. A query sees only keys of its own document: all of those in
// earlier slices, and those in its own slice up to its own position. With attention both ways it
// sees all of them, and there must be one slice. Each part is one call. Parts are merged by their
// log-sum-exp, and the backward of every part takes the merged output and statistics, so memory
// stays linear in the length and nothing is kept twice.
#pragma once

#include <vector>

#include "sluice/model/attention_input.h"

namespace sluice {

AttentionOutput attention(const AttentionInput& input, const Documents& documents,
                          const SliceBounds& bounds);

// Returns dq of this slice. Adds to key_gradients[j] and value_gradients[j] (fp32, j = 0..c) what
// this slice's queries contribute. These may be undefined where one call computes them whole.
at::Tensor attention_backward(const at::Tensor& d_out, const AttentionInput& input,
                              const AttentionOutput& output, const Documents& documents,
                              const SliceBounds& bounds, std::vector<at::Tensor>& key_gradients,
                              std::vector<at::Tensor>& value_gradients);

}  // namespace sluice
