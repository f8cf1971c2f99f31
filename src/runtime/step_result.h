// What a training step gave, on one rank.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "sluice/base/error.h"
#include "sluice/runtime/executor.h"
#include "sluice/runtime/stage_versions.h"

namespace sluice {

// How rank 0 planned a batch.
struct Planning {
  double predicted_s = 0;  // that its microbatches take
  double plan_s = 0;       // that the planner took
  double wait_s = 0;       // that the step waited for it
};

struct StepResult {
  std::int64_t number = 0;
  double loss = 0;           // mean over all target tokens of the global batch
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  std::int64_t num_tokens = 0;   // of the global batch
  std::int64_t num_targets = 0;  // those with a loss
  double squared_lengths = 0;    // of its documents (GlobalBatch)
  // Of unequal sequences: with what pads them; and on rank 0, where they are planned.
  std::int64_t padded_tokens = 0;
  std::optional<Planning> planning;
  ExecutedStep executed;                              // this rank's
  std::optional<WindowCounts> counts = std::nullopt;  // likewise; where steps overlap
  // Likewise: what the optimizer took, by stage that this rank updates, shared out by elements.
  std::map<int, double> update_seconds = {};
  bool stop = false;  // some rank was asked to stop before the end of the step
};

// The error of a run in which a number is no longer finite; `what` says which.
UserError diverged(std::int64_t step, const std::string& what);

}  // namespace sluice
