#include "sluice/runtime/files/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "sluice/base/storage_error.h"
#include "sluice/runtime/files/file_system.h"

namespace sluice {

UserError moved_error(const std::string& folder) {
  return UserError(
      fmt::format("checkpoint.folder {} was moved or deleted while this run was using it: nothing "
                  "was saved there; put it back, or name another folder, and start again",
                  folder),
      ExitCode::temporary);
}

FolderLock::FolderLock(const std::string& folder)
    : folder_(folder), path_(folder + "/" + kLockName) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (fd_ < 0) throw file_error("open", path_, errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  ::close(fd_);
  if (error != EWOULDBLOCK) throw file_error("lock", path_, error);
  throw UserError(fmt::format("checkpoint.folder {} is in use by another run: wait until it ends, "
                              "or name another folder",
                              folder),
                  ExitCode::temporary);
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : folder_(std::move(other.folder_)),
      path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)) {}

void FolderLock::check() const {
  struct stat held {};
  struct stat there {};
  if (::fstat(fd_, &held) != 0) throw file_error("look at", path_, errno);
  const bool found = ::stat(path_.c_str(), &there) == 0;
  if (!found && is_transient(errno)) throw file_error("look at", path_, errno);
  if (found && held.st_dev == there.st_dev && held.st_ino == there.st_ino) return;
  throw moved_error(folder_);
}

}  // namespace sluice
