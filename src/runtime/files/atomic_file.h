// Files that are whole or not there. An AtomicFile is written beside its name and takes the name
// only once its bytes are on the disk; an AppendFile grows by whole pieces. Neither harms what was
// there before when the disk fills or fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/runtime/files/file_system.h"

namespace sluice {

// Use: construct, write any number of times, commit. Every failure is a UserError (file_error),
// and leaves the file of that name as it was and no temporary behind; only when the last call of
// all fails, the sync of the folder, the new file is in place. Not for two threads.
class AtomicFile {
 public:
  // Creates "<path>.tmp-<process>-<n>" in the same folder, which must exist.
  AtomicFile(FileSystem& files, const std::string& path);
  ~AtomicFile();  // without commit: removes the temporary
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(as_byte_span(text)); }

  // Flush, fsync, rename, fsync of the folder. A failed fsync is final: it is never retried.
  void commit();

 private:
  void flush();

  FileSystem& files_;
  std::string path_;
  std::string temporary_;  // "" once it is renamed
  int fd_ = -1;
  std::vector<std::byte> buffer_;
};

void write_file_atomically(FileSystem& files, const std::string& path, std::string_view text);

// Whether `name` (no folder) is a temporary that an AtomicFile left when its process was killed.
bool is_temporary_name(std::string_view name);

// A log. Each append goes to the file at once and whole: after a failure the file is cut back to
// what it held. (A killed process may still leave part of its last piece.)
class AppendFile {
 public:
  // must_be_new: a file of that name is an error (EEXIST) rather than continued. A symbolic link is
  // never followed.
  enum class Existing { append, must_be_new };
  AppendFile(FileSystem& files, const std::string& path, Existing existing);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Keeps other processes' locks away until the file is closed; false where another holds it.
  bool try_lock();
  void append(std::string_view bytes);
  void cut(std::uint64_t size);  // to its first `size` bytes

 private:
  FileSystem& files_;
  std::string path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace sluice
