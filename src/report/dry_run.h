// What is known of a run before it runs, as a table or as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/plan/plan_run.h"
#include "sluice/plan/prediction.h"
#include "sluice/plan/run_memory.h"

namespace sluice {

struct DryRun {
  const PlannedRun& run;
  std::vector<RankMemory> ranks;
  Prediction prediction;
  std::optional<std::int64_t> machine_bytes;  // memory that the ranks here share, if known
  std::optional<bool> fits;                   // into parallelism.device_memory_mib, or into that
  std::vector<std::string> remarks;
};

// MiB per rank and elements sent, with the prediction and the remarks under it.
std::string dry_run_text(const DryRun& dry);
// One object (docs/training.md).
std::string dry_run_json(const DryRun& dry);

std::string mebibytes(double bytes);  // "12.34"

}  // namespace sluice
