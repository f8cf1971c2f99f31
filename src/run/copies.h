// A stage that several devices hold: the holders are in the order of their lowest pipes, and the
// first is the owner. Each has gradients of its own microbatches. Either all holders add up all of
// them and update their copies alike; or the owner alone does, keeps the optimizer's states and
// sends the others the new weights (asynchronous.states).
#pragma once

#include <vector>

#include "sluice/run/plan.h"

namespace sluice {

// The owners alone keep states.
bool owners_update(const RunPlan& plan);
// Whether a device that holds the stage updates it.
bool updates_stage(const RunPlan& plan, int stage, int device);

// Who sends a holder its gradients of the stage, and gets this holder's; without itself.
struct CopyPeers {
  std::vector<int> from, to;
};
CopyPeers gradient_peers(const RunPlan& plan, int stage, int device);
// Likewise of updated weights.
CopyPeers value_peers(const RunPlan& plan, int stage, int device);
// Likewise of the gradients of a tied embedding's other end, between devices that update one end
// and not the other; `stage` is the first or the last, which the device holds.
CopyPeers tied_peers(const RunPlan& plan, int stage, int device);

}  // namespace sluice
