// The folder of a run's checkpoints:
//
//   FOLDER/LATEST                                "step-00000020": the one to resume from
//   FOLDER/step-00000020/rank-00000.safetensors  one per rank
//   FOLDER/step-00000020/manifest.json           written after all shards
//   FOLDER/.lock                                 held by the run that writes here
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
#include <string_view>
#include <vector>

#include "runtime/files/file_system.h"
#include "runtime/files/manifest.h"

namespace sluice {

inline constexpr const char* kManifestName = "manifest.json";

std::string step_folder_name(std::int64_t step);                       // step-00000020
std::optional<std::int64_t> parse_step_folder(std::string_view name);  // exactly that form
std::vector<std::int64_t> steps_in(const std::string& folder);         // ascending, whole or not

struct FoundCheckpoint {
  std::string folder;
  std::int64_t step = 0;
  std::vector<std::string> passed_over;  // why newer ones, or LATEST, were not taken
};

// The checkpoint to resume from: the one LATEST names, or else the newest one that is whole; every
// byte of it is verified. Nothing when the folder is missing or holds none. UserError bad_data when
// it holds some and none can be trusted.
std::optional<FoundCheckpoint> find_latest(const std::string& folder);

// The checkpoint that a user means by `path`: itself, or the newest in the folder; every byte of it
// is verified. UserError bad_data when there is none, or when a newer one cannot be trusted.
std::string checkpoint_at(const std::string& path);

// Throws UserError when LATEST of the folder is newer than start_step: a run that starts there
// would overwrite it later.
void check_start_step(const std::string& folder, std::int64_t start_step);

struct CheckpointFolderOptions {
  std::string folder;
  int rank = 0;
  int num_ranks = 1;            // that write shards
  std::int64_t start_step = 0;  // the step this run resumed from, 0 for a fresh one
  int keep_latest_k = 0;        // 0 keeps all
};

// One rank's side of saving. The object of rank 0 holds the folder's lock as long as it lives; a
// second run there is a UserError temporary.
class CheckpointFolder {
 public:
  // The bytes of pieces[index]; asked for once each, and needed until the next call.
  using PieceBytes = std::function<std::span<const std::byte>(std::size_t index)>;

  // Rank 0 makes the folder, checks the start step and removes what killed saves left behind.
  // Construct rank 0's first, then a barrier, then the others'.
  CheckpointFolder(FileSystem& files, CheckpointFolderOptions options);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

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
  void lock();
  void remove_half_written();
  void remove_old(std::int64_t latest);

  FileSystem& files_;
  CheckpointFolderOptions options_;
  int lock_fd_ = -1;
};

}  // namespace sluice
