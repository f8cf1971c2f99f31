// How the layers of a run are best dealt to its stages, beside the even split.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/plan/plan_run.h"

namespace sluice {

struct PartitionReport {
  // What a split gives.
  struct Outcome {
    std::vector<std::int64_t> layers;
    std::vector<double> stage_share;  // of all work
    std::vector<double> device_share;
    std::vector<double> bytes;  // by device
    double step = 0;            // seconds, or in the unit of the counts
  };

  const PlannedRun& run;
  Outcome best;
  std::optional<Outcome> even;  // none where there are more stages than layers
};

// REQUIRES: layers that are still open (plan_open_run).
PartitionReport partition_report(const PlannedRun& run);

std::string partition_text(const PartitionReport& report);
std::string partition_json(const PartitionReport& report);

}  // namespace sluice
