// A run whose steps overlap, once more and serially: one loop over the ops of all devices, weights
// of all versions kept as they were, gradients of every window apart. It shares the model, the
// optimizer and what data ranks and tensor ranks do with the trainer, and nothing that lets steps
// overlap.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sluice/comm/communicator.h"
#include "sluice/data/dataset.h"
#include "sluice/run/plan.h"

namespace sluice::test {

struct Emulated {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;  // after the last step, of this rank
};

// The first steps of a run of plan.config.training.steps. `world` has the ranks of one stage: data
// x tensor. Every rank calls it.
Emulated emulate(const RunPlan& plan, const Dataset& data, int steps, Communicator& world);

}  // namespace sluice::test
