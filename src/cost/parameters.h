// The weights of a model by name and shape, without a tensor of it: what a rank will allocate, and
// what a checkpoint of it must hold. The model's own lists are the same, which a test holds it to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/model_shape.h"

namespace sluice {

struct ParameterShape {
  std::string name;
  std::vector<std::int64_t> shape;

  std::int64_t count() const;  // of its elements
};

// A stage's: a run of layers, with the embedding before and the head behind where it has them. A
// tied head has a weight of its own, kept equal to the embedding's.
struct StageLayers {
  std::int64_t first = 0;
  std::int64_t end = 0;  // one past the last
  bool embedding = false;
  bool head = false;
};
std::vector<ParameterShape> stage_parameters(const ModelShape& shape, const StageLayers& layers);

}  // namespace sluice
