// What people see while a run trains: a line per logged step on standard output and, on a terminal,
// a progress bar on standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "sluice/config/config.h"
#include "sluice/runtime/files/metrics_log.h"

namespace sluice::cli {

class Progress {
 public:
  // The bar is drawn where metrics.progress asks for it and standard error is a terminal that can
  // rewrite a line. REQUIRES: the configuration outlives it.
  explicit Progress(const Config& config);
  ~Progress();  // takes the bar away
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepMetrics& metrics, bool logged);  // a line where it is logged; moves the bar
  void note(const std::string& text);                  // "sluice: <text>" on standard error

 private:
  struct Bar {
    StepMetrics last;  // of the step that was done last
    double seconds_left = 0;
  };
  // [########--------]  120/250  48%  loss 4.3125  tps 41,203  1:05 left
  // At most `columns` wide: on a narrow terminal the boxes go first, then the end.
  std::string bar_line(const Bar& bar, int columns) const;
  void print_line(const StepMetrics& metrics) const;
  void erase_bar();
  void draw_bar();

  const Config& config_;
  const bool has_bar_;
  std::optional<Bar> bar_;                         // none before the first step and after the last
  std::int64_t num_done_ = 0;                      // steps of this run
  std::chrono::steady_clock::time_point started_;  // when the first of them ended
};

}  // namespace sluice::cli
