// The shape of the model that a configuration names.
#pragma once

#include "cost/model_shape.h"
#include "runtime/config/config.h"

namespace sluice {

// REQUIRES: a resolved configuration.
ModelShape model_shape(const Config& config);

}  // namespace sluice
