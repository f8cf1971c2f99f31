#include "sluice/runtime/files/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace sluice {
namespace {

// Small tensors and headers share a write; larger pieces go out as they are.
constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::string_view kTemporaryMark = ".tmp-";

}  // namespace

AtomicFile::AtomicFile(FileSystem& files, const std::string& path) : files_(files), path_(path) {
  // O_EXCL, so that two writers never share a temporary and one left by a dead process of the same
  // number is not continued.
  for (int n = 0;; ++n) {
    std::string name = fmt::format("{}{}{}-{}", path, kTemporaryMark, ::getpid(), n);
    fd_ = files_.open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    if (fd_ >= 0) {
      temporary_ = std::move(name);
      return;
    }
    if (errno != EEXIST || n == 1000) throw file_error("create", path_, errno);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) files_.close(fd_);
  if (!temporary_.empty()) files_.unlink(temporary_);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() > kBufferBytes)
    write_all(files_, fd_, bytes, path_);
  else
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void AtomicFile::flush() {
  write_all(files_, fd_, buffer_, path_);
  buffer_.clear();
}

void AtomicFile::commit() {
  SLUICE_CHECK(fd_ >= 0, "{} is committed twice", path_);
  flush();
  if (files_.fsync(fd_) != 0) throw file_error("sync", path_, errno);
  const int fd = std::exchange(fd_, -1);
  if (files_.close(fd) != 0) throw file_error("close", path_, errno);
  if (files_.rename(temporary_, path_) != 0) throw file_error("rename into", path_, errno);
  temporary_.clear();
  sync_folder(files_, parent_folder(path_));
}

void write_file_atomically(FileSystem& files, const std::string& path, std::string_view text) {
  AtomicFile file(files, path);
  file.write(text);
  file.commit();
}

bool is_temporary_name(std::string_view name) {
  const std::size_t at = name.rfind(kTemporaryMark);
  if (at == std::string_view::npos || at == 0) return false;
  const std::string_view rest = name.substr(at + kTemporaryMark.size());
  return !rest.empty() && rest.find_first_not_of("0123456789-") == std::string_view::npos;
}

AppendFile::AppendFile(FileSystem& files, const std::string& path, Existing existing)
    : files_(files), path_(path) {
  const int only_new = existing == Existing::must_be_new ? O_EXCL : 0;
  fd_ = files_.open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOFOLLOW | only_new);
  if (fd_ < 0 && errno == ELOOP)
    throw user_error("{} is a symbolic link: remove it, or name another folder", path);
  if (fd_ < 0) throw file_error("open", path, errno);
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    files_.close(fd_);
    throw user_error("cannot append to {}: needs a regular file", path);
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

AppendFile::~AppendFile() { files_.close(fd_); }

bool AppendFile::try_lock() {
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  throw file_error("lock", path_, errno);
}

void AppendFile::cut(std::uint64_t size) {
  if (files_.ftruncate(fd_, static_cast<off_t>(size)) != 0) throw file_error("cut", path_, errno);
  size_ = size;
}

void AppendFile::append(std::string_view bytes) {
  try {
    write_all(files_, fd_, as_byte_span(bytes), path_);
  } catch (const UserError&) {
    files_.ftruncate(fd_, static_cast<off_t>(size_));
    throw;
  }
  size_ += bytes.size();
}

}  // namespace sluice
