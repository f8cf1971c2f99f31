// Checks whether a run would start. Reads the data and the checkpoint that it would resume from;
// allocates no weights and writes nothing.
#pragma once

#include <string>
#include <vector>

#include "sluice/data/dataset.h"
#include "sluice/run/plan.h"

namespace sluice {

// Throws the UserError that the run would end with: a batch that cannot be read (of a large one,
// its first and last sequences are), a checkpoint that is of another model or damaged with none
// whole before it, a folder that cannot be written to. Returns a line for each thing to know about
// the checkpoint that the run would resume from; `rollback` as in TrainingRun.
std::vector<std::string> check_before_run(const RunPlan& plan, const Dataset* training,
                                          int rollback = 0);

// Throws UserError unless a file could be made in the folder, or the folder itself in the nearest
// one above it that is there.
void check_writable(const std::string& folder);

}  // namespace sluice
