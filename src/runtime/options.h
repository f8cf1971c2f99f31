// The model's shape and the trainer's options, as a resolved configuration has them.
#pragma once

#include "cost/model_costs.h"
#include "runtime/config/config.h"
#include "runtime/config/model.h"
#include "runtime/trainer.h"

namespace sluice {

MeshShape mesh_shape(const Config& config);
at::ScalarType model_dtype(const Config& config);
RecomputeLevel recompute_level(const Config& config);
// REQUIRES: layers_per_stage is even or a list; resolve `auto` before calling this.
TrainerOptions trainer_options(const Config& config, const Schedule& schedule);
// As far as costs depend on it.
StagedModel staged_model(const TrainerOptions& options, const Schedule& schedule);
// What a profile of this run is measured on.
MeasuredOn measured_on(const TrainerOptions& options, const Schedule& schedule);

}  // namespace sluice
