// The model's shape and the trainer's options, as a resolved configuration has them.
#pragma once

#include "runtime/config/config.h"
#include "runtime/trainer.h"

namespace sluice {

ModelShape model_shape(const Config& config);
at::ScalarType model_dtype(const Config& config);
RecomputeLevel recompute_level(const Config& config);
TrainerOptions trainer_options(const Config& config, const Schedule& schedule);

}  // namespace sluice
