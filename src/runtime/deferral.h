// The update of a step. It follows when the step's totals (loss, gradient norm) are known; with
// deferred validation it comes first, as if there were nothing to clip, and is corrected when they
// are known.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "sluice/cuda/device.h"
#include "sluice/optim/data_parallel.h"
#include "sluice/optim/gradient_norm.h"
#include "sluice/optim/optimizer.h"
#include "sluice/run/plan.h"
#include "sluice/runtime/stage_copies.h"
#include "sluice/runtime/step_result.h"

namespace sluice {

class Deferral {
 public:
  // All outlive it.
  Deferral(const RunPlan& plan, Optimizer& optimizer, StageCopies& copies,
           DataParallel& data_parallel, const std::vector<Weight>& weights, TotalsChain& totals)
      : plan_(plan),
        optimizer_(optimizer),
        copies_(copies),
        data_parallel_(data_parallel),
        weights_(weights),
        totals_(totals) {}

  // What the optimizer took for the last update, the exchange of gradients and weights left out. On
  // a GPU the last update that is known to be done.
  double update_seconds() const { return update_seconds_; }

  // Called when the totals are known and found right, before the weights change.
  void set_before_update(std::function<void(const StepResult&)> before_update) {
    before_update_ = std::move(before_update);
  }

  // The gradient norm of the last step; 0: there was none. A resumed run is told it.
  double last_norm() const { return last_norm_; }
  void set_last_norm(double norm) { last_norm_ = norm; }

  // A step whose totals are not known yet, with what is known of it; null: none.
  const StepResult* open() const { return open_ ? &*open_ : nullptr; }

  // Opens a step. Does not wait for its totals. REQUIRES: none is open; the gradients are summed.
  void begin(StepResult result, DeviceTotals mine);
  // Passes on totals that have arrived in the meantime. Does not block.
  void poll() {
    if (open_) totals_.poll();
  }
  // Whether totals leave the update of the open step as it was made.
  bool stands(const StepTotals& totals) const { return totals.finite() && scale_of(totals) == 1; }
  // Ends the open step: leaves the weights as these totals want them. Throws UserError (diverged)
  // with the weights as they were before the step.
  StepResult close(const StepTotals& totals);
  // The same; blocks until the totals are known.
  StepResult close() { return close(totals_.finish()); }

 private:
  bool deferred() const { return plan_.config.parallelism.deferred_validation; }
  double scale_of(const StepTotals& totals) const;
  void update(const StepResult& result, double scale);
  void step_timed(const StepResult& result, double scale);

  const RunPlan& plan_;
  Optimizer& optimizer_;
  StageCopies& copies_;
  DataParallel& data_parallel_;
  const std::vector<Weight>& weights_;
  TotalsChain& totals_;
  std::optional<StepResult> open_;
  double last_norm_ = 0;
  double update_seconds_ = 0;
  std::optional<std::pair<cuda::Moment, cuda::Moment>> update_;  // on a GPU: where it began, ended
  std::function<void(const StepResult&)> before_update_;
};

}  // namespace sluice
