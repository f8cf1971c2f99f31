// The steps of which a rank has run ops and not yet updated the weights, where steps overlap: their
// batches, and for each stage of the rank its versions of the weights and of the gradients. Step n
// is window n - 1.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "sluice/run/plan.h"
#include "sluice/runtime/batches.h"
#include "sluice/runtime/stage_versions.h"

namespace sluice {

class OpenWindows {
 public:
  // Moves the weights in place of a stage ahead by one update (StageVersions::Predict).
  using Predict = std::function<void(int stage, std::int64_t updates)>;

  // The stages' weights are what `updates` updates left. All outlive it. REQUIRES: plan.endless.
  OpenWindows(const RunPlan& plan, int device, const std::map<int, Stage*>& stages,
              std::int64_t updates, const Predict& predict);

  // The window whose update comes next.
  std::int64_t next() const { return next_; }
  bool has(std::int64_t window) const { return windows_.contains(window); }
  void open(std::int64_t window, GlobalBatch batch);
  const GlobalBatch& batch(std::int64_t window) const { return windows_.at(window).batch; }
  const Microbatch& microbatch(int number) const;

  void before(const Op& op);
  void after(const Op& op);
  // This rank's loss of the window that is next.
  double loss() const;
  // Around the update of that window.
  void settle();
  // Puts in place the weights that forwards of the window behind it have used; behind the last
  // window of a run, those that they would have used: it may be resumed with more.
  void use_predictions();
  void before_update();
  WindowCounts after_update();
  // As if an update of a window that was finished before this run began were just made.
  void after_past_update();

  // What all versions of the weights took at most, and the gradients of all windows.
  std::int64_t peak_weight_bytes() const { return peak_weight_bytes_; }
  std::int64_t gradient_bytes() const;

 private:
  struct Window {
    GlobalBatch batch;
    WindowCounts counts;
  };

  const RunPlan& plan_;
  const std::map<int, Stage*>& stages_;
  std::map<int, StageVersions> versions_;  // by stage
  std::map<std::int64_t, Window> windows_;
  std::int64_t next_;
  std::int64_t peak_weight_bytes_ = 0;
};

}  // namespace sluice
