#include "sluice/data/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "sluice/base/error.h"

namespace sluice {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

UserError write_error(const std::string& path) {
  const int code = errno;
  const bool temporary = code == ENOSPC || code == EDQUOT || code == EIO;
  return UserError(fmt::format("cannot write '{}': {}", path, std::strerror(code)),
                   temporary ? ExitCode::temporary : ExitCode::usage);
}

// Some file systems have no fsync; that is no failure of the disk.
bool flushed(int descriptor) {
  return ::fsync(descriptor) == 0 || errno == EINVAL || errno == EROFS;
}

}  // namespace

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), partial_(fmt::format("{}.partial-{}", path_, ::getpid())) {
  buffer_.reserve(kBufferBytes);
  descriptor_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw write_error(path_);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(partial_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= kBufferBytes) write_buffer();
}

void OutputFile::write_buffer() {
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t wrote = ::write(descriptor_, buffer_.data() + done, buffer_.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw write_error(path_);
    done += static_cast<std::size_t>(wrote);
  }
  buffer_.clear();
}

void OutputFile::flush_to_disk() {
  write_buffer();
  if (!flushed(descriptor_)) throw write_error(path_);
}

void OutputFile::commit() {
  flush_to_disk();
  if (::rename(partial_.c_str(), path_.c_str()) != 0) throw write_error(path_);
  ::close(descriptor_);
  descriptor_ = -1;
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw write_error(path);
}

void flush_folder_of(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw write_error(folder);
  const int failure = flushed(descriptor) ? 0 : errno;
  ::close(descriptor);
  errno = failure;
  if (failure != 0) throw write_error(folder);
}

}  // namespace sluice
