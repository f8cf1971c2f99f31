// A trainer's weights and optimizer states to a checkpoint and back. Every rank takes part.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "sluice/comm/communicator.h"
#include "sluice/runtime/files/checkpoint.h"
#include "sluice/runtime/files/checkpoint_folder.h"
#include "sluice/runtime/trainer.h"
#include "sluice/runtime/weights/saved_tensors.h"

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
  Saver(const RunPlan& plan, Communicator& world, Trainer& trainer, Resumed resumed,
        const Note& note);

  // Saves the state after `step`, unless that is saved already; `note` is told on rank 0.
  void save(std::int64_t step, const Note& note);

  const std::string& run() const { return run_; }  // the run's id, on rank 0

 private:
  std::set<std::string> own_weights()
      const;  // names of those that this rank, or a data rank, saves

  const RunPlan& plan_;
  Communicator& world_;
  Trainer& trainer_;
  RealFileSystem files_;
  std::optional<CheckpointFolder> folder_;
  std::int64_t last_saved_;
  std::string run_;
};

// Loads what find_checkpoint finds, if anything, and tells `note` of it on rank 0. Throws UserError
// (3) for a damaged checkpoint or one of another model. Changes nothing on the disk.
Resumed load_checkpoint(const Config& config, int rollback, Communicator& world, Trainer& trainer,
                        const Note& note);

// Fills weights from a checkpoint, whatever its mesh; `tied` as model.tied_embeddings. Throws
// UserError (3) for one of another model.
void load_weights(const Checkpoint& checkpoint, const std::vector<Parameter*>& parameters,
                  bool tied);

}  // namespace sluice
