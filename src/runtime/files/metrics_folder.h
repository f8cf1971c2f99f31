// metrics.folder: metrics.jsonl and TensorBoard's event files, one row of each per step that is
// logged. A folder belongs to the run whose rows its metrics.jsonl holds; any other run writes to a
// subfolder of its own, run-<id>, which TensorBoard shows as a run of its own, too. Beside them a
// run that plans its batches writes plans.jsonl, one line per step (run/batch_plan_file.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sluice/runtime/files/metrics_log.h"
#include "sluice/runtime/files/tfevents.h"

namespace sluice {

struct MetricsFolderOptions {
  std::string folder;
  std::string run;              // its id, the same after a resume
  std::int64_t first_step = 1;  // rows of this run from here on no longer count
  bool plans = false;           // plans.jsonl is written, too
};

class MetricsFolder {
 public:
  // Continues this run's metrics.jsonl, or starts it, and begins an event file of its own. What
  // another run wrote is left as it is. UserError for a folder that cannot be written to. `files`
  // outlives it.
  MetricsFolder(FileSystem& files, const MetricsFolderOptions& options);

  const std::string& folder() const { return folder_; }  // options.folder, or its subfolder

  // Both files hold the step when it returns; the scalars have the names of the JSON keys.
  // UserError as in AppendFile.
  void append(const StepMetrics& metrics);
  // plans.jsonl holds the line when it returns. UserError likewise. REQUIRES: options.plans.
  void append_plan(const std::string& line);

 private:
  std::string folder_;
  std::unique_ptr<MetricsLog> log_;
  std::unique_ptr<AppendFile> plans_;
  std::optional<TfeventsWriter> events_;
};

}  // namespace sluice
