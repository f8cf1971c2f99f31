// metrics.folder: metrics.jsonl and TensorBoard's event files, one row of each per step.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/files/metrics_log.h"
#include "runtime/files/tfevents.h"

namespace sluice {

class MetricsFolder {
 public:
  // Continues metrics.jsonl and begins an event file of its own, folder included. What runs before
  // said of `first_step` and later steps no longer counts, in either. `files` outlives it.
  MetricsFolder(FileSystem& files, const std::string& folder, std::int64_t first_step);

  // Both files hold the step when it returns; the scalars have the names of the JSON keys.
  // UserError as in AppendFile.
  void append(const StepMetrics& metrics);

 private:
  MetricsLog log_;
  TfeventsWriter events_;
};

}  // namespace sluice
