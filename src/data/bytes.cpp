#include "sluice/data/bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "sluice/base/storage_error.h"

namespace sluice {
namespace {

// Of the call that has just failed. A missing file is the user's to name again.
UserError read_error(const std::string& text) {
  const int code = errno;
  const ExitCode exit_code = code == ENOENT || code == ENOTDIR ? ExitCode::usage
                             : is_transient(code)              ? ExitCode::temporary
                                                               : ExitCode::bad_data;
  return UserError(fmt::format("{}: {}", text, std::strerror(code)), exit_code);
}

class File : public Bytes {
 public:
  File(std::string path, int descriptor, std::int64_t size)
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}
  ~File() override { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& name() const override { return path_; }
  std::int64_t size() const override { return size_; }

  std::size_t read_some(std::int64_t offset, std::span<std::byte> out) const override {
    std::size_t done = 0;
    while (done < out.size()) {
      const ssize_t got = ::pread(descriptor_, out.data() + done, out.size() - done,
                                  static_cast<off_t>(offset) + static_cast<off_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0)
        throw read_error(fmt::format("cannot read '{}' at byte {}", path_,
                                     offset + static_cast<std::int64_t>(done)));
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

 private:
  std::string path_;
  int descriptor_;
  std::int64_t size_;
};

class StandardInput : public Bytes {
 public:
  const std::string& name() const override { return name_; }
  std::int64_t size() const override { return 0; }

  std::size_t read_some(std::int64_t offset, std::span<std::byte> out) const override {
    SLUICE_CHECK(offset == read_, "standard input is at byte {}, not at {}", read_, offset);
    std::size_t done = 0;
    while (done < out.size()) {
      const ssize_t got = ::read(STDIN_FILENO, out.data() + done, out.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw read_error("cannot read standard input");
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    read_ += static_cast<std::int64_t>(done);
    return done;
  }

 private:
  std::string name_ = "standard input";
  mutable std::int64_t read_ = 0;
};

}  // namespace

void Bytes::read(std::int64_t offset, std::span<std::byte> out) const {
  const std::size_t got = read_some(offset, out);
  if (got < out.size())
    throw bad_data("'{}' ends at byte {}: {} bytes were expected at byte {}; the file is truncated",
                   name(), offset + static_cast<std::int64_t>(got), out.size(), offset);
}

std::unique_ptr<Bytes> open_file(const std::string& path) {
  // Non-blocking, so that a FIFO without a writer is refused instead of waited for.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw read_error(fmt::format("cannot read '{}'", path));
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    const std::string cause =
        known ? "it is not a regular file" : std::string(std::strerror(errno));
    ::close(descriptor);
    throw bad_data("cannot read '{}': {}", path, cause);
  }
  return std::make_unique<File>(path, descriptor, std::int64_t{status.st_size});
}

std::unique_ptr<Bytes> open_standard_input() { return std::make_unique<StandardInput>(); }

std::size_t MemoryBytes::read_some(std::int64_t offset, std::span<std::byte> out) const {
  if (offset < 0 || static_cast<std::size_t>(offset) >= bytes_.size()) return 0;
  const std::size_t count = std::min(out.size(), bytes_.size() - static_cast<std::size_t>(offset));
  std::memcpy(out.data(), bytes_.data() + offset, count);
  return count;
}

std::string_view ByteStream::next() {
  const std::size_t got = bytes_.read_some(offset_, std::as_writable_bytes(std::span(buffer_)));
  offset_ += static_cast<std::int64_t>(got);
  return {buffer_.data(), got};
}

}  // namespace sluice
