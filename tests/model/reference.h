// The obvious reference: the whole model in plain autograd, attention by an explicit mask. Slow and
// easy to read; everything else must equal it.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sluice/cost/model_shape.h"
#include "sluice/model/stage.h"

namespace sluice::test {

struct ReferenceResult {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

// A layer that is no block: x (length, dim) of one sequence -> y, with the weights by the names
// that follow "layers.N.".
using ReferenceLayer = std::function<at::Tensor(
    const at::Tensor& x, const std::function<at::Tensor(const std::string&)>& weight)>;

// Sum over all tokens with a target of `scale` x loss, and its gradients by name. A tied head uses
// its own entry, so that lookup and head gradients stay apart. `own` takes the place of the block
// in layers of these numbers.
ReferenceResult reference_step(const ModelShape& shape,
                               const std::map<std::string, at::Tensor>& weights,
                               const std::vector<Microbatch>& microbatches, double scale,
                               const std::map<std::int64_t, ReferenceLayer>& own = {});

}  // namespace sluice::test
