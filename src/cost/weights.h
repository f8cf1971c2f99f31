// How many numbers the parts of a model have as weights, biases and norms included. The model's own
// parameters are counted against these in its tests.
#pragma once

#include <cstdint>

#include "cost/model_shape.h"

namespace sluice {

std::int64_t block_weights(const ModelShape& shape);
std::int64_t embedding_weights(const ModelShape& shape);
// A tied output projection counts here too: each end holds its copy.
std::int64_t head_weights(const ModelShape& shape);

}  // namespace sluice
