// What a run reports of a step: a row of metrics.jsonl, which is one JSON object per line, and the
// line of the terminal in torchtitan's form.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sluice/runtime/files/atomic_file.h"

namespace sluice {

// Of a step whose sequences ranks share.
struct SharedMetrics {
  struct Planned {
    double predicted_s = 0;
    double plan_ms = 0;
    double plan_wait_s = 0;
  };
  double all_to_all_s = 0;  // of the rank with most
  std::int64_t padded_tokens = 0;
  std::optional<Planned> planned;  // where this run has planned the batch
};

// How old the weights of a step were, where steps overlap (docs/asynchronous.md): (stage,
// microbatch) pairs by mismatch, from 0 up; the largest delay; and how many gradients of such pairs
// were added up.
struct StalenessMetrics {
  std::vector<std::int64_t> mismatch;
  std::int64_t max_delay = 0;
  std::int64_t gradients_counted = 0;
};

struct StepMetrics {
  std::int64_t step = 0;
  double time = 0;  // when the step ended, in seconds since 1970
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  std::int64_t tokens = 0;
  double step_time_s = 0;
  double tps = 0;
  double tflops = 0;                           // per rank, as cost/flops.h counts
  std::optional<double> mfu;                   // 0 to 1; nothing where the peak is unknown
  double bubble = 0;                           // of the whole, 0 to 1
  std::int64_t memory_bytes = 0;               // peak of rank 0's process, or of its GPU
  double memory_share = 0;                     // of the machine's or the GPU's; not in the row
  std::vector<std::int64_t> peak_stash_bytes;  // per rank
  std::vector<std::int64_t> predicted_peak_stash_bytes;
  std::optional<SharedMetrics> shared;
  std::optional<StalenessMetrics> staleness;
  std::optional<double> validation_loss;  // only in rows of a validation
};

// One line, with its newline; `run` names the run. Every number but the time, which has
// milliseconds, reads back as the same double; NaN and infinities, for which JSON has no number,
// are null.
std::string metrics_line(const StepMetrics& metrics, const std::string& run);

class MetricsLog {
 public:
  // Continues the file at `path`, or starts it, folder included, and locks it. Cuts the rows of
  // steps from `first_step` on, which this run is going to write again, and a last line that a
  // killed run left unfinished. Null, and nothing is changed, where the file is another run's: it
  // holds a row of another run, or of none, or another process has locked it.
  static std::unique_ptr<MetricsLog> claim(FileSystem& files, const std::string& path,
                                           const std::string& run, std::int64_t first_step);

  // The line is in the file when it returns. UserError as in AppendFile.
  void append(const StepMetrics& metrics);

 private:
  MetricsLog(std::unique_ptr<AppendFile> file, std::string run);

  std::unique_ptr<AppendFile> file_;
  std::string run_;
};

struct StepLine {
  std::int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double memory_gib = 0;
  double memory_percent = 0;
  double tps = 0;  // per device
  double tflops = 0;
  std::optional<double> mfu_percent;  // N/A where the device's peak is unknown
  double bubble_percent = 0;
};

// step: 120  loss:  4.31250  grad_norm:  0.9123  memory: 12.31GiB(8.86%)  tps: 41,203
// tflops: 312.40  mfu: 39.50%  bubble: 12.50%    (on one line, without a newline)
std::string step_line(const StepLine& line);

}  // namespace sluice
