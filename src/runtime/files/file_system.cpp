#include "sluice/runtime/files/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "sluice/base/storage_error.h"

namespace sluice {
namespace {

UserError bad_file(const std::string& text) { return UserError(text, ExitCode::bad_data); }

const char* kind_name(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

int RealFileSystem::open(const std::string& path, int flags) {
  return ::open(path.c_str(), flags | O_CLOEXEC, 0644);
}
ssize_t RealFileSystem::write(int fd, const void* bytes, std::size_t size) {
  return ::write(fd, bytes, size);
}
int RealFileSystem::fsync(int fd) { return ::fsync(fd); }
int RealFileSystem::ftruncate(int fd, off_t size) { return ::ftruncate(fd, size); }
int RealFileSystem::close(int fd) { return ::close(fd); }
int RealFileSystem::rename(const std::string& from, const std::string& to) {
  return std::rename(from.c_str(), to.c_str());
}
int RealFileSystem::unlink(const std::string& path) { return ::unlink(path.c_str()); }
int RealFileSystem::mkdir(const std::string& path) { return ::mkdir(path.c_str(), 0755); }
int RealFileSystem::rmdir(const std::string& path) { return ::rmdir(path.c_str()); }

UserError file_error(const std::string& action, const std::string& path, int error) {
  std::string text = fmt::format("cannot {} {}: {}", action, path, std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT: text += "; make room and start again: nothing saved before is lost"; break;
    case EFBIG: text += "; raise the limit (ulimit -f): nothing saved before is lost"; break;
    case EIO: text += "; check the disk and start again: nothing saved before is lost"; break;
    default:
      if (!is_transient(error)) return UserError(text);
      text +=
          "; the storage may be busy or out of reach: start again, nothing saved before is lost";
  }
  return UserError(text, ExitCode::temporary);
}

UserError read_error(const std::string& action, const std::string& path, int error) {
  const bool absent = error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG;
  if (!absent) return file_error(action, path, error);
  return bad_file(fmt::format("cannot {} {}: {}", action, path, std::strerror(error)));
}

void write_all(FileSystem& files, int fd, std::span<const std::byte> bytes,
               const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = files.write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw file_error("write", path, errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void sync_folder(FileSystem& files, const std::string& folder) {
  const int fd = files.open(folder, O_RDONLY | O_DIRECTORY);
  if (fd < 0) throw file_error("open folder", folder, errno);
  const int error = files.fsync(fd) == 0 ? 0 : errno;
  files.close(fd);
  if (error != 0) throw file_error("sync folder", folder, error);
}

void make_folders(FileSystem& files, const std::string& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) == 0) {
    if (!S_ISDIR(status.st_mode)) throw file_error("make folder", folder, ENOTDIR);
    return;
  }
  const std::string parent = parent_folder(folder);
  if (parent != folder) make_folders(files, parent);
  // Another rank may make it at the same moment.
  if (files.mkdir(folder) != 0 && errno != EEXIST) throw file_error("make folder", folder, errno);
  sync_folder(files, parent);
}

std::string parent_folder(const std::string& path) {
  const std::size_t last = path.find_last_not_of('/');
  if (last == std::string::npos) return path.empty() ? "." : "/";
  const std::size_t slash = path.find_last_of('/', last);
  if (slash == std::string::npos) return ".";
  const std::size_t end = path.find_last_not_of('/', slash);
  return end == std::string::npos ? "/" : path.substr(0, end + 1);
}

bool is_there(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return true;
  if (is_transient(errno)) throw file_error("look at", path, errno);
  return false;
}

std::span<const std::byte> as_byte_span(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

InputFile::InputFile(const std::string& path, Symlinks symlinks) : path_(path) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const int flags =
      O_RDONLY | O_CLOEXEC | O_NONBLOCK | (symlinks == Symlinks::refuse ? O_NOFOLLOW : 0);
  fd_ = ::open(path.c_str(), flags);
  if (fd_ < 0) {
    if (errno == ELOOP && symlinks == Symlinks::refuse)
      throw bad_file(fmt::format("{} is a symbolic link: needs a regular file", path));
    throw read_error("open", path, errno);
  }
  struct stat status {};
  const int error = ::fstat(fd_, &status) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  ::close(fd_);
  if (error != 0) throw read_error("open", path, error);
  throw bad_file(fmt::format("{} is {}: needs a regular file", path, kind_name(status.st_mode)));
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

void InputFile::read_at(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = ::pread(fd_, into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      throw read_error("read", fmt::format("{} at byte {}", path_, offset), errno);
    }
    if (got == 0)
      throw bad_file(
          fmt::format("{} ends at byte {}, and had {} bytes when it was opened: {} more were "
                      "expected; another program is writing to it",
                      path_, offset, size_, into.size()));
    offset += static_cast<std::uint64_t>(got);
    into = into.subspan(static_cast<std::size_t>(got));
  }
}

std::string InputFile::read_text(std::uint64_t max_bytes) const {
  if (size_ > max_bytes)
    throw bad_file(fmt::format("{} has {} bytes: needs at most {}", path_, size_, max_bytes));
  std::string text(static_cast<std::size_t>(size_), '\0');
  read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace sluice
