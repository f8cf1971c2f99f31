// The folder of a run's checkpoints:
//
//   FOLDER/LATEST                                "step-00000020": the one to resume from
//   FOLDER/step-00000020/rank-00000.safetensors  one per rank
//   FOLDER/step-00000020/manifest.json           written after all shards
//   FOLDER/.lock                                 held by the run that writes here
//   FOLDER/step-00000020.damaged                 set aside, like step-00000020.rolled-back
//
// A save is: write_shard on every rank, a barrier of the caller's, commit on rank 0. Whatever is
// killed or fails in between, what was committed before stays as it was: every file is written
// beside its name, synced and renamed, shards before the manifest, the manifest before LATEST.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/runtime/files/file_system.h"
#include "sluice/runtime/files/find_checkpoint.h"
#include "sluice/runtime/files/folder_lock.h"
#include "sluice/runtime/files/manifest.h"

namespace sluice {

struct CheckpointFolderOptions {
  std::string folder;
  int rank = 0;
  int num_ranks = 1;            // that write shards
  std::int64_t start_step = 0;  // the step this run resumed from, 0 for a fresh one
  int keep_latest_k = 0;        // 0 keeps all
};

// One rank's side of saving. The object of rank 0 holds the folder's lock as long as it lives; a
// second run there is a UserError temporary, and so is a folder that is moved or deleted meanwhile.
class CheckpointFolder {
 public:
  // The bytes of pieces[index]; asked for once each, and needed until the next call.
  using PieceBytes = std::function<std::span<const std::byte>(std::size_t index)>;

  // Rank 0 makes the folder, checks the start step and removes what killed saves left behind.
  // Construct rank 0's first, then a barrier, then the others'. `lock` is the folder's where it is
  // held already.
  CheckpointFolder(FileSystem& files, CheckpointFolderOptions options,
                   std::optional<FolderLock> lock = std::nullopt);
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  // Throws UserError temporary unless the folder is still the one that rank 0 has locked; the other
  // ranks see whether it is there. Rank 0 asks before anyone writes.
  void check_lock() const;

  // Writes this rank's shard of `step`; `pieces` may be empty. Never touches the checkpoint that
  // LATEST names. Blocks until the bytes are on the disk.
  void write_shard(std::int64_t step, const std::vector<TensorPiece>& pieces,
                   const PieceBytes& bytes);

  // Rank 0, once every rank has written: checks that the shards tile every tensor, writes the
  // manifest, then LATEST, then removes checkpoints beyond keep_latest_k. Those newer than this
  // one (left by a run that was rolled back) are neither counted nor removed.
  void commit(const CheckpointInfo& info);

 private:
  std::string step_path(std::int64_t step) const;
  void make_step_folder(const std::string& folder);
  // Does `work`; where that fails because the folder is gone, the error says so.
  template <typename Work>
  void guarded(const Work& work) const;
  void write(std::int64_t step, const std::vector<TensorPiece>& pieces, const PieceBytes& bytes);
  void finish(const CheckpointInfo& info);
  void remove_half_written();
  void remove_old(std::int64_t latest);

  FileSystem& files_;
  CheckpointFolderOptions options_;
  std::optional<FolderLock> lock_;  // of rank 0
};

}  // namespace sluice
