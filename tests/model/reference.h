// The obvious reference: the whole model in plain autograd, attention by an explicit mask. Slow and
// easy to read; everything else must equal it.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>

#include "cost/model_shape.h"
#include "model/stage.h"

namespace sluice::test {

struct ReferenceResult {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

// Sum over all tokens with a target of `scale` x loss, and its gradients by name. A tied head uses
// its own entry, so that lookup and head gradients stay apart.
ReferenceResult reference_step(const ModelShape& shape,
                               const std::map<std::string, at::Tensor>& weights,
                               const std::vector<Microbatch>& microbatches, double scale);

}  // namespace sluice::test
