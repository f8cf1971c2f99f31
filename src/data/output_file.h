// Files that are written. An OutputFile appears whole or not at all: it is written beside its final
// name, flushed to the disk, then renamed. Dropped without commit(), it leaves nothing behind.
// (Checkpoints have an AtomicFile, whose every call a test can fail.)
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Every call throws UserError: 75 when the disk is full, fails or a limit is reached, else 2.
class OutputFile {
 public:
  // `called`: its name in errors; "": the path.
  explicit OutputFile(std::string path, std::string called = "");
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);  // buffered
  void flush_to_disk();                          // blocks until the disk has it all
  void commit();                                 // flush_to_disk, then rename

 private:
  void write_buffer();

  std::string path_;
  std::string called_;
  std::string partial_;
  int descriptor_ = -1;
  std::vector<std::byte> buffer_;
};

// A text as a file, atomically. A link stays a link: what it names is replaced. A pipe or a device
// is written to as it is.
void write_text(const std::string& path, std::string_view text);
void write_to_standard_output(std::string_view text);

// Removes a file; one that is not there is fine.
void remove_file(const std::string& path);

// Makes renames in the folder of `path` last.
void flush_folder_of(const std::string& path);

}  // namespace sluice
