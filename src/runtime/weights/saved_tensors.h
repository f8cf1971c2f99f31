// The tensors of a checkpoint that a run goes on from: which there are, and which of them it takes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sluice/config/config.h"
#include "sluice/runtime/files/checkpoint.h"
#include "sluice/runtime/files/find_checkpoint.h"

namespace sluice {

// The weight's name, where `name` is that of a master.
std::optional<std::string> weight_of_master(const std::string& name);
// The name on disk. A tied head is the embedding under another name: one of them is there.
std::string stored_name(const std::string& name, bool tied);

// The checkpoint that checkpoint.load names, every byte of it verified; none for a fresh start.
// `rollback` goes back so many checkpoints of checkpoint.folder. Throws UserError (3).
std::optional<FoundCheckpoint> find_checkpoint(const CheckpointConfig& config, int rollback);

// The tensor of a checkpoint that a run with the tensor `wanted` loads: the one of its name or, for
// an fp32 weight that was trained in bf16, its fp32 master. F32 and BF16 are converted to each
// other. Throws UserError (3) where it is missing, or of another shape or type.
const TensorSpec& find_tensor(const Checkpoint& checkpoint, const TensorSpec& wanted, bool tied);

// Throws UserError (3) for a weight of the checkpoint that is none of `wanted`, the names of all
// weights of a model: it would be lost.
void check_none_left(const Checkpoint& checkpoint, const std::vector<std::string>& wanted,
                     bool tied);

// Whether it has states of an optimizer; one that was imported, or trained by sgd, has none.
bool has_states(const Checkpoint& checkpoint);
// Whether the run that saved it trained by another optimizer.
bool by_other_optimizer(const Checkpoint& checkpoint, const Config& config);
// Whether a state of that name begins anew where a run goes on from the checkpoint: all do where it
// has none, masters where it was saved by a run without, and others that another optimizer did not
// keep. Masters then begin as the checkpoint's weights, moments and momentum as zero.
bool begins_anew(const Checkpoint& checkpoint, const std::string& state, const Config& config);
// Where another optimizer goes on: which states begin as zero and which of the checkpoint's are not
// used. `states` are the names of all that the run keeps; "": it is the same optimizer.
std::string changed_optimizer(const Checkpoint& checkpoint, const std::vector<std::string>& states,
                              const Config& config);

}  // namespace sluice
