// Bytes that can be read at any offset: a file, or memory in tests. Files are read with pread and
// never mapped, so one that shrinks while it is read ends in an error and not in a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/base/error.h"

namespace sluice {

// Safe to use from several threads at once.
class Bytes {
 public:
  virtual ~Bytes() = default;
  virtual const std::string& name() const = 0;  // for messages
  virtual std::int64_t size() const = 0;        // as it was when opened
  // Reads up to out.size() bytes from `offset` on and returns how many there were: fewer only at
  // the end. Throws UserError: 75 when storage fails for now, else 3.
  virtual std::size_t read_some(std::int64_t offset, std::span<std::byte> out) const = 0;

  // Fills `out`. Throws UserError (3) when the bytes end before that.
  void read(std::int64_t offset, std::span<std::byte> out) const;
};

// Opens a file. Throws UserError: 2 when it is missing, 75 when storage fails for now, else 3
// (unreadable, not a regular file).
std::unique_ptr<Bytes> open_file(const std::string& path);

// Standard input, which is read once and in order: a ByteStream can read it. Its size is 0.
std::unique_ptr<Bytes> open_standard_input();

class MemoryBytes : public Bytes {
 public:
  explicit MemoryBytes(std::string_view bytes, std::string name = "memory")
      : bytes_(bytes), name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  std::int64_t size() const override { return static_cast<std::int64_t>(bytes_.size()); }
  std::size_t read_some(std::int64_t offset, std::span<std::byte> out) const override;

 private:
  std::string bytes_;
  std::string name_;
};

// A file from its beginning to its end, in pieces: keeps one piece in memory.
class ByteStream {
 public:
  explicit ByteStream(const Bytes& bytes) : bytes_(bytes), buffer_(std::size_t{1} << 18) {}
  // The next piece, valid until the next call; empty at the end.
  std::string_view next();

 private:
  const Bytes& bytes_;
  std::int64_t offset_ = 0;
  std::vector<char> buffer_;
};

}  // namespace sluice
