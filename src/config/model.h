// The shape of the model that a configuration names.
#pragma once

#include "config/config.h"
#include "cost/model_shape.h"

namespace sluice {

// REQUIRES: a resolved configuration.
ModelShape model_shape(const Config& config);

}  // namespace sluice
