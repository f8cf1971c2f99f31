// Attention on a GPU: the same as in model/attention.h, in as few calls as the kernels allow. The
// keys of all earlier slices are one part, and those of the slice itself another.
#pragma once

#include "sluice/model/attention_input.h"

namespace sluice {

AttentionOutput attention_cuda(const AttentionInput& input, const Documents& documents,
                               const SliceBounds& bounds);
// Whether a GPU computes all of it in a few calls. For packed documents it does so in half
// precision only.
bool in_few_calls(const AttentionInput& input, const Documents& documents);

// As attention_backward; undefined gradients of keys and values are created.
AttentionGradients attention_backward_cuda(const at::Tensor& d_out, const AttentionInput& input,
                                           const AttentionOutput& output,
                                           const Documents& documents, const SliceBounds& bounds,
                                           std::vector<at::Tensor>& key_gradients,
                                           std::vector<at::Tensor>& value_gradients);

}  // namespace sluice
