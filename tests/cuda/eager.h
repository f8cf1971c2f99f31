// The model as anybody would write it with PyTorch's functions and autograd, on any device and of
// any type: what our own error on a GPU is held against.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>

#include "sluice/cost/model_shape.h"
#include "sluice/model/stage.h"

namespace sluice::test {

// Gradients of the sum over all targets of `scale` x loss. The tensors of `batch` and `weights` are
// on one device; sequences of one document each.
std::map<std::string, at::Tensor> eager_gradients(const ModelShape& shape,
                                                  const std::map<std::string, at::Tensor>& weights,
                                                  const Microbatch& batch, double scale);

}  // namespace sluice::test
