// Checks whether a run would start. Reads the data and the checkpoint that it would resume from;
// allocates no weights and writes nothing.
#pragma once

#include <string>
#include <vector>

#include "sluice/data/dataset.h"
#include "sluice/run/plan.h"

namespace sluice {

struct BeforeRun {
  std::int64_t resumed = 0;          // the step that the run would resume from; 0: none
  std::vector<std::string> remarks;  // a line for each thing to know
};

// Throws the UserError that the run would end with: a batch that cannot be read (of a large one,
// its first and last sequences are), batch plans that lack a step or are of other data, a
// checkpoint that is of another model or damaged with none whole before it, a folder that cannot be
// written to. `training` is null where the data is not here; `rollback` as in TrainingRun.
BeforeRun check_before_run(const RunPlan& plan, const Dataset* training, int rollback = 0);

// Throws UserError unless a file could be made in the folder, or the folder itself in the nearest
// one above it that is there.
void check_writable(const std::string& folder);

}  // namespace sluice
