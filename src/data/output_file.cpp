#include "sluice/data/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "sluice/base/error.h"

namespace sluice {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

UserError write_error(const std::string& where) {
  const int code = errno;
  const bool temporary = code == ENOSPC || code == EDQUOT || code == EIO || code == EFBIG;
  return UserError(fmt::format("cannot write {}: {}", where, std::strerror(code)),
                   temporary ? ExitCode::temporary : ExitCode::usage);
}

std::string in_quotes(const std::string& path) { return fmt::format("'{}'", path); }

void write_all(int descriptor, std::span<const std::byte> bytes, const std::string& where) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(descriptor, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw write_error(where);
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
}

// Some file systems have no fsync; that is no failure of the disk.
bool flushed(int descriptor) {
  return ::fsync(descriptor) == 0 || errno == EINVAL || errno == EROFS;
}

// Written to, never replaced.
void write_into(const std::string& path, std::span<const std::byte> bytes) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) throw write_error(in_quotes(path));
  try {
    write_all(descriptor, bytes, in_quotes(path));
  } catch (...) {
    ::close(descriptor);
    throw;
  }
  ::close(descriptor);
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string called)
    : path_(std::move(path)),
      called_(in_quotes(called.empty() ? path_ : called)),
      partial_(fmt::format("{}.partial-{}", path_, ::getpid())) {
  descriptor_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw write_error(called_);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(partial_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) write_buffer();
  if (bytes.size() > kBufferBytes)
    write_all(descriptor_, bytes, called_);
  else
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void OutputFile::write_buffer() {
  write_all(descriptor_, buffer_, called_);
  buffer_.clear();
}

void OutputFile::flush_to_disk() {
  write_buffer();
  if (!flushed(descriptor_)) throw write_error(called_);
}

void OutputFile::commit() {
  flush_to_disk();
  if (::rename(partial_.c_str(), path_.c_str()) != 0) throw write_error(called_);
  ::close(descriptor_);
  descriptor_ = -1;
}

void write_text(const std::string& path, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  struct stat target {};
  if (::stat(path.c_str(), &target) == 0 && !S_ISREG(target.st_mode))
    return write_into(path, bytes);
  std::error_code unresolved;
  const std::filesystem::path real = std::filesystem::weakly_canonical(path, unresolved);
  OutputFile file(unresolved ? path : real.string(), path);
  file.write(bytes);
  file.commit();
}

void write_to_standard_output(std::string_view text) {
  write_all(STDOUT_FILENO, std::as_bytes(std::span(text)), "standard output");
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw write_error(in_quotes(path));
}

void flush_folder_of(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw write_error(in_quotes(folder));
  const int failure = flushed(descriptor) ? 0 : errno;
  ::close(descriptor);
  errno = failure;
  if (failure != 0) throw write_error(in_quotes(folder));
}

}  // namespace sluice
