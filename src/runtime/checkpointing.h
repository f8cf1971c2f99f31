// A trainer's weights and optimizer states to a checkpoint and back. Every rank takes part.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "comm/communicator.h"
#include "runtime/config/config.h"
#include "runtime/files/checkpoint.h"
#include "runtime/files/checkpoint_folder.h"
#include "runtime/trainer.h"

namespace sluice {

using Note = std::function<void(const std::string&)>;  // what a user should know, one line

// Where a run goes on from. Rank 0 also has the lock of checkpoint.folder, if that was there, and
// what was found in it.
struct Resumed {
  std::int64_t step = 0;  // the last one taken; 0: a fresh start
  std::optional<FolderLock> lock = std::nullopt;
  std::optional<FoundCheckpoint> found = std::nullopt;
};

class Saver {
 public:
  // Sets aside what resuming passed over and tells `note` of it on rank 0. Does nothing when the
  // configuration names no folder. All references outlive it.
  Saver(const Config& config, const Schedule& schedule, Communicator& world, Trainer& trainer,
        Resumed resumed, const Note& note);

  // Saves the state after `step`, unless that is saved already; `note` is told on rank 0.
  void save(std::int64_t step, const Note& note);

  const std::string& run() const { return run_; }  // the run's id, on rank 0

 private:
  std::set<std::string> own_weights()
      const;  // names of those that this rank, or a data rank, saves

  const Config& config_;
  const Schedule& schedule_;
  Communicator& world_;
  Trainer& trainer_;
  RealFileSystem files_;
  std::optional<CheckpointFolder> folder_;
  std::int64_t last_saved_;
  std::string run_;
};

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

// Whether it was saved by training; one that was imported has weights only.
bool has_states(const Checkpoint& checkpoint);
// Whether a state of that name begins anew where a run goes on from the checkpoint: all do where it
// has weights only, and masters where it was saved by a run without. Masters then begin as the
// checkpoint's weights, moments as zero.
bool begins_anew(const Checkpoint& checkpoint, const std::string& state, bool tied);

// Loads what find_checkpoint finds, if anything, and tells `note` of it on rank 0. Throws UserError
// (3) for a damaged checkpoint or one of another model. Changes nothing on the disk.
Resumed load_checkpoint(const Config& config, int rollback, Communicator& world, Trainer& trainer,
                        const Note& note);

// Fills weights from a checkpoint, whatever its mesh; `tied` as model.tied_embeddings. Throws
// UserError (3) for one of another model.
void load_weights(const Checkpoint& checkpoint, const std::vector<Parameter*>& parameters,
                  bool tied);

}  // namespace sluice
