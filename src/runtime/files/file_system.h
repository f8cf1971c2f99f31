// The seam to the disk. Everything that changes a file goes through a FileSystem, so that tests can
// fail, kill or cut the power at any single call. Reading needs no seam: tests damage the files
// themselves. Files are read with pread and never mapped: one that shrinks while it is read is an
// error here and would be a SIGBUS there.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "sluice/base/error.h"

namespace sluice {

// Each function is the system call of its name: -1 and errno on failure. Safe to use from several
// threads at once on different files.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual int open(const std::string& path, int flags) = 0;  // O_CLOEXEC is added; mode 0644
  virtual ssize_t write(int fd, const void* bytes, std::size_t size) = 0;
  virtual int fsync(int fd) = 0;
  virtual int ftruncate(int fd, off_t size) = 0;
  virtual int close(int fd) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int unlink(const std::string& path) = 0;
  virtual int mkdir(const std::string& path) = 0;
  virtual int rmdir(const std::string& path) = 0;
};

class RealFileSystem : public FileSystem {
 public:
  int open(const std::string& path, int flags) override;
  ssize_t write(int fd, const void* bytes, std::size_t size) override;
  int fsync(int fd) override;
  int ftruncate(int fd, off_t size) override;
  int close(int fd) override;
  int rename(const std::string& from, const std::string& to) override;
  int unlink(const std::string& path) override;
  int mkdir(const std::string& path) override;
  int rmdir(const std::string& path) override;
};

// What the user reads when `action` ("write", "rename", ...) on `path` failed with errno `error`. A
// retry may cure a full disk and storage that is busy or out of reach (exit code 75); the rest,
// such as a read-only folder, is the user's to change (2).
UserError file_error(const std::string& action, const std::string& path, int error);
// The same for a file that is read: one that is not there is bad data (3).
UserError read_error(const std::string& action, const std::string& path, int error);

// Writes all of `bytes`, through interruptions and short writes. Throws file_error; `path` is for
// its text only.
void write_all(FileSystem& files, int fd, std::span<const std::byte> bytes,
               const std::string& path);

// Makes the names in `folder` durable: without it a rename may be lost with the power.
void sync_folder(FileSystem& files, const std::string& folder);

// Makes `folder` and the missing ones above it. One that is there already is no error.
void make_folders(FileSystem& files, const std::string& folder);

std::string parent_folder(const std::string& path);  // "." for a bare name
// Of any kind, dangling links too. Throws file_error where the storage gives no answer.
bool is_there(const std::string& path);

std::span<const std::byte> as_byte_span(std::string_view text);

enum class Symlinks { follow, refuse };

// A regular file, open for reading. Anything else in its place (nothing, a folder, a FIFO, a
// device, a symbolic link where those are refused) is a UserError bad_data and never blocks. Errors
// of storage are read_error. Reading is safe from several threads.
class InputFile {
 public:
  explicit InputFile(const std::string& path, Symlinks symlinks = Symlinks::follow);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  InputFile& operator=(InputFile&&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // when it was opened

  // Fills `into` from `offset` on; a file that ends before is a UserError bad_data.
  void read_at(std::uint64_t offset, std::span<std::byte> into) const;

  // The whole file; refused as bad_data when larger than `max_bytes`.
  std::string read_text(std::uint64_t max_bytes) const;

 private:
  std::string path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace sluice
