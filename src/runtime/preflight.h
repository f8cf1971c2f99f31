// What can be known before a run starts: whether it would start. Reads the data and the checkpoint
// it would resume from, allocates no weights, writes nothing.
#pragma once

#include <string>

#include "data/dataset.h"
#include "runtime/config/config.h"
#include "runtime/trainer.h"

namespace sluice {

// Throws the UserError that the run would end with: a batch that cannot be read (of a large one,
// its first and last sequences are), a checkpoint that is damaged or of another model, a folder
// that cannot be written to.
void check_before_run(const Config& config, const TrainerOptions& options, const Dataset& training);

// Throws UserError unless a file could be made in the folder, or the folder itself in the nearest
// one above it that is there.
void check_writable(const std::string& folder);

}  // namespace sluice
