// The lock of a folder of checkpoints: one run at a time writes there.
#pragma once

#include <string>

#include "sluice/base/error.h"

namespace sluice {

inline constexpr const char* kLockName = ".lock";

// What a run ends with whose folder is no longer at its path.
UserError moved_error(const std::string& folder);

// Holds FOLDER/.lock as long as it lives. The lock dies with its process, so the file is never
// stale and never removed.
class FolderLock {
 public:
  // The folder must exist. UserError temporary when another run holds the lock.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  FolderLock& operator=(FolderLock&&) = delete;

  // Throws UserError temporary unless the file that is locked is still the one at its path: a
  // folder that was moved or deleted may have been made again by another run, which holds the
  // other one.
  void check() const;

 private:
  std::string folder_;
  std::string path_;
  int fd_ = -1;
};

}  // namespace sluice
