// What plans the batches of a run as it goes (flexsp.enabled). Planning and its costs are on the
// pure side; what trains gets them as functions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sluice/run/batch_plan.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

// The functions may be called from several threads at once.
struct BatchPlanner {
  struct Planned {
    BatchPlan plan;
    double seconds = 0;  // that the microbatches take, as predicted
  };
  // The plan of a batch whose sequences have these lengths; equal lengths give the equal plan.
  // Throws UserError where one fits no group.
  std::function<Planned(std::span<const std::int64_t> lengths)> plan;
  // The run's schedule for so many microbatches, lowered and proved; it lasts as long as the
  // planner. REQUIRES: a plan has so many.
  std::function<const Schedule&(int num_microbatches)> schedule;
  std::vector<int> degrees;  // that groups may have, ascending
  std::int64_t longest = 0;  // tokens of the longest sequence that a group holds
  // One line: who has the same plans equal batches in the same way.
  std::string identity;
};

}  // namespace sluice
