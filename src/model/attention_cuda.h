// Attention on a GPU: what model/attention.h promises, in as few calls as the kernels allow. The
// keys of all earlier slices are one part, those of the own slice another.
#pragma once

#include "model/attention.h"

namespace sluice {

AttentionOutput attention_cuda(const AttentionInput& input, const Documents& documents,
                               const SliceBounds& bounds);
// As attention_backward; where one call gives a gradient in whole, it stays of the inputs' type.
at::Tensor attention_backward_cuda(const at::Tensor& d_out, const AttentionInput& input,
                                   const AttentionOutput& output, const Documents& documents,
                                   const SliceBounds& bounds,
                                   std::vector<at::Tensor>& key_gradients,
                                   std::vector<at::Tensor>& value_gradients);

}  // namespace sluice
