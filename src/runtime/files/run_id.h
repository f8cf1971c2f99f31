// The id of a run: eight hexadecimal digits in its metrics and its checkpoints. A run that resumes
// from its own checkpoint.folder keeps its id; every other start is a new run.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

std::string new_run_id();

// What a checkpoint of the run in `folder`, its checkpoint.folder, keeps of it beside tensors:
// CheckpointInfo::state. `gradient_norm` is that of the step that was saved, `planner` what planned
// its batch goes by (run/batch_planner.h; "": nothing did).
std::string run_state(const std::string& run, const std::string& folder, double gradient_norm,
                      const std::string& planner = "");
// What a planner goes by now that the one of a state did not, each with what it was before; "": the
// same, or the state names none.
std::string changed_planner(const std::string& state, const std::string& planner);
// The gradient norm of a state; 0: it has none (imported, or saved by an older version).
double gradient_norm_of(const std::string& state);

// The id of a run that starts after `last_step` with these values of checkpoint.folder and
// checkpoint.load. It is new unless the run resumes from a checkpoint in `folder` that a run with
// this folder saved: not from another folder, from one that was copied there, or from one that
// names no run (imported, or saved by an older version).
std::string run_id(const std::string& folder, const std::string& load, std::int64_t last_step);

}  // namespace sluice
