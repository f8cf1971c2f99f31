// A file that appears whole or not at all: written beside its final name, flushed to the disk,
// then renamed. Dropped without commit(), it leaves nothing behind.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace sluice {

class OutputFile {
 public:
  // Throws UserError: 75 when the disk is full or fails (as do the other calls), else 2.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);  // buffered
  void flush_to_disk();                          // blocks until the disk has it all
  void commit();                                 // flush_to_disk, then rename

 private:
  void write_buffer();

  std::string path_;
  std::string partial_;
  int descriptor_ = -1;
  std::vector<std::byte> buffer_;
};

// Removes a file; one that is not there is fine. Throws UserError (2).
void remove_file(const std::string& path);

// Makes renames in the folder of `path` last. Throws UserError (75).
void flush_folder_of(const std::string& path);

}  // namespace sluice
