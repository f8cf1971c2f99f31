// How long the parts of a run's model take: by the profile that parallelism.costs names, or else by
// counting FLOPs.
#pragma once

#include <optional>
#include <string>

#include "sluice/cost/part_times.h"
#include "sluice/run/plan.h"

namespace sluice {

struct RunTimes {
  PartTimes parts;
  bool checked = false;   // the profile says what it was measured on: this run
  bool measured = false;  // seconds of a microbatch; else FLOPs of one token
  Link link;              // between devices, of the profile
  // What sequences cost that ranks share, where the profile says it.
  std::optional<SequenceCosts> flexsp = std::nullopt;
  std::string note;  // a remark on the costs file; "": none
};

// The plan's layers_per_stage means nothing here. Throws UserError for a costs file that is bad, or
// of another run.
RunTimes run_times(const RunPlan& plan);

}  // namespace sluice
