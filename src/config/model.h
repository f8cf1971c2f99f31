// The shape of the model that a configuration names.
#pragma once

#include "sluice/config/config.h"
#include "sluice/cost/model_shape.h"

namespace sluice {

// REQUIRES: a resolved configuration.
ModelShape model_shape(const Config& config);

}  // namespace sluice
