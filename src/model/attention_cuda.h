// Attention on a GPU: what model/attention.h promises, in as few calls as the kernels allow. The
// keys of all earlier slices are one part, those of the own slice another.
#pragma once

#include "cuda/functions.h"
#include "model/attention.h"

namespace sluice {

AttentionOutput attention_cuda(const AttentionInput& input, const Documents& documents,
                               const SliceBounds& bounds);
// Whether a GPU takes all of it in a few calls; packed documents it does in half precision only.
bool in_few_calls(const AttentionInput& input, const Documents& documents);

// The gradients of q, k and v of this slice, each the sum of both. What this slice's queries
// contribute to the keys and values of earlier slices is added to theirs, as in attention_backward,
// and those of later ones are in `more`; undefined gradients are made.
struct AttentionGradients {
  cuda::HeadGradients own, more;
};
AttentionGradients attention_backward_cuda(const at::Tensor& d_out, const AttentionInput& input,
                                           const AttentionOutput& output,
                                           const Documents& documents, const SliceBounds& bounds,
                                           std::vector<at::Tensor>& key_gradients,
                                           std::vector<at::Tensor>& value_gradients);

}  // namespace sluice
