// Which checkpoint of a run's folder to take (checkpoint_folder.h has the layout), and how to set
// aside those that must not be taken.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/runtime/files/file_system.h"
#include "sluice/runtime/files/step_folder.h"

namespace sluice {

std::vector<std::int64_t> steps_in(const std::string& folder);  // ascending, whole or not

// What is verified of a checkpoint: all of it, or its manifest and the sizes of its files.
enum class Trust { every_byte, manifest };

struct FindOptions {
  Trust trust = Trust::every_byte;
  int rollback = 0;  // so many whole checkpoints are passed over, from the newest on
};

// A checkpoint that was not taken.
struct PassedOver {
  std::optional<std::int64_t> step;  // none: LATEST itself is damaged
  std::string damage;                // the file and what is wrong; "": rolled back
};

struct FoundCheckpoint {
  std::string folder;
  std::int64_t step = 0;
  std::vector<PassedOver> passed_over = {};  // newest first
};

// The checkpoint to resume from: the one that LATEST names, or else the newest whole one before it.
// Nothing when the folder is missing or holds none. UserError bad_data when it holds some and all
// are damaged, usage when there are too few to roll back. An error of storage is no damage: it is
// thrown as it is.
std::optional<FoundCheckpoint> find_latest(const std::string& folder,
                                           const FindOptions& options = {});

// The checkpoint that a user means by `path`: itself, or the newest in the folder. UserError
// bad_data when there is none, or when the newest is damaged.
std::string checkpoint_at(const std::string& path, Trust trust = Trust::every_byte);

// Throws UserError when LATEST of the folder is newer than start_step: a run that starts there
// would overwrite it later.
void check_start_step(const std::string& folder, std::int64_t start_step);

// Makes the found checkpoint the newest: renames those that were passed over to NAME.damaged or
// NAME.rolled-back, which nobody takes for a checkpoint, then lets LATEST name the found one.
// Returns a line for each. Needs the folder's lock.
std::vector<std::string> set_aside(FileSystem& files, const std::string& folder,
                                   const FoundCheckpoint& found);

void write_latest(FileSystem& files, const std::string& folder, std::int64_t step);
// The step that LATEST names; nothing when there is none or it is damaged.
std::optional<std::int64_t> latest_step(const std::string& folder);

// Names in a folder; none when there is no such folder.
std::vector<std::string> names_in(const std::string& folder);

}  // namespace sluice
