// Attention on a GPU: the same as in model/attention.h, in as few calls as the kernels allow. The
// keys of all earlier slices are one part, and those of the slice itself another.
#pragma once

#include "cuda/functions.h"
#include "model/attention.h"

namespace sluice {

AttentionOutput attention_cuda(const AttentionInput& input, const Documents& documents,
                               const SliceBounds& bounds);
// Whether a GPU computes all of it in a few calls. For packed documents it does so in half
// precision only.
bool in_few_calls(const AttentionInput& input, const Documents& documents);

// The gradients of q, k and v of this slice, each the sum of `own` and `more`. What this slice's
// queries contribute to the keys and values of earlier slices is added to their gradients, as in
// attention_backward; undefined ones are created. What later slices have contributed to this
// slice's keys and values is in `more`.
struct AttentionGradients {
  cuda::HeadGradients own, more;
};
AttentionGradients attention_backward_cuda(const at::Tensor& d_out, const AttentionInput& input,
                                           const AttentionOutput& output,
                                           const Documents& documents, const SliceBounds& bounds,
                                           std::vector<at::Tensor>& key_gradients,
                                           std::vector<at::Tensor>& value_gradients);

}  // namespace sluice
