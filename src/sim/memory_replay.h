// Replays what each device holds, op by op in program order: a stash from the start of its F, in
// its other size from the end of its I, gone at the end of its W or B; keys and values of sliced
// microbatches from each slice's F to the end of the microbatch's last I; their gradients from its
// first I on.
#pragma once

#include <algorithm>
#include <vector>

#include "sluice/cost/costs.h"

namespace sluice {

struct MemoryStep {
  double before = 0, at_start = 0, at_end = 0;
};

class MemoryReplay {
 public:
  MemoryReplay(const Schedule& schedule, Costs costs)
      : costs_(std::move(costs)),
        held_(schedule.programs.size(), 0),
        peak_(schedule.programs.size(), 0),
        num_slices_(schedule.num_slices),
        kv_(static_cast<std::size_t>(schedule.num_stages()), 0),
        kv_gradients_(static_cast<std::size_t>(schedule.num_stages()), 0) {
    for (int stage = 0; stage < schedule.num_stages(); ++stage)
      for (int slice = 0; slice < schedule.num_slices; ++slice) {
        kv_[static_cast<std::size_t>(stage)] += costs_.at(stage, slice).kv;
        if (slice + 1 < schedule.num_slices)
          kv_gradients_[static_cast<std::size_t>(stage)] += costs_.at(stage, slice).kv_gradient;
      }
  }

  MemoryStep apply(std::size_t device, const Op& op) {
    const OpCosts& costs = costs_.of(op);
    double& held = held_[device];
    MemoryStep step{held, held, held};
    if (op.kind == OpKind::F) {
      held += costs.after_f + costs.kv;
      step.at_start = step.at_end = held;
    } else {
      if (op.kind == OpKind::I) held += costs.after_i - costs.after_f;
      if (op.kind == OpKind::W) held -= costs.after_i;
      if (op.kind == OpKind::B) held -= costs.after_f;
      // Backwards take the slices last to first: slice 0 is the last to need the keys and values.
      if (op.slice == 0 && gives_input_gradient(op.kind))
        held -= kv_[static_cast<std::size_t>(op.stage)];
      if (gives_input_gradient(op.kind))
        held += op.slice + 1 == num_slices_ ? kv_gradients_[static_cast<std::size_t>(op.stage)]
                                            : -costs.kv_gradient;
      step.at_end = held;
    }
    peak_[device] = std::max(peak_[device], held);
    return step;
  }

  double peak(std::size_t device) const { return peak_[device]; }

 private:
  Costs costs_;
  std::vector<double> held_, peak_;
  int num_slices_;
  std::vector<double> kv_;            // per stage, of a whole microbatch
  std::vector<double> kv_gradients_;  // per stage, of all slices but the last
};

}  // namespace sluice
