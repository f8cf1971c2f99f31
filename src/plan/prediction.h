// How fast a run will be, before it runs.
#pragma once

#include <cstdint>
#include <optional>

#include "sluice/plan/plan_run.h"

namespace sluice {

struct Prediction {
  // Share of a step in which the busiest device waits; without messages, all microbatches being
  // full.
  double bubble = 0;
  // Known with a profile (parallelism.costs), or with cluster.peak_tflops; not of unequal
  // sequences.
  std::optional<double> step_s;
  std::optional<double> tokens_per_s;  // of all ranks
  std::optional<double> days;          // of training.steps
  std::optional<double> mfu;           // needs cluster.peak_tflops
  // The times take every matmul at the peak and everything else as free: a run cannot be faster.
  bool lower_bound = false;
};

Prediction predict(const PlannedRun& run);

}  // namespace sluice
