// safetensors files: an 8-byte header size, a JSON header, then the tensors' bytes without gaps.
// The reader trusts nothing: every size is computed with checked products and compared with what
// the file says and holds. The writer streams and gives the bytes that the reference writer gives.
// A file that cannot be trusted is a UserError bad_data that names the path, the tensor and both
// values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/runtime/files/atomic_file.h"
#include "sluice/runtime/files/file_system.h"
#include "sluice/runtime/files/sha256.h"

namespace sluice {

// In the reference writer's order: files hold the last of these first.
enum class Dtype : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64
};
std::string_view dtype_name(Dtype dtype);  // "F32"
std::optional<Dtype> parse_dtype(std::string_view name);
int dtype_bits(Dtype dtype);

// Bytes of such a tensor, or nothing when the product overflows, a dimension is negative, or
// elements of less than a byte do not fill whole bytes.
std::optional<std::uint64_t> tensor_bytes(Dtype dtype, std::span<const std::int64_t> shape);

// Why `name` cannot name a tensor, or "": at most 1024 bytes, no control characters, no "..", not
// absolute (names end up in paths of other tools), and not "__metadata__".
std::string tensor_name_problem(std::string_view name);

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape;  // [] is one element
  bool operator==(const TensorSpec&) const = default;
};

struct TensorInfo : TensorSpec {
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in file order
  std::map<std::string, std::string> metadata;
};

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxTensorRank = 64;

// Reads the JSON of a header whose file holds `buffer_bytes` after it. `path` is for errors only.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t buffer_bytes,
                                           const std::string& path);

// The header size and the padded header, as they start a file; sets the offset and bytes of every
// tensor. The tensors are in file order already.
std::string format_safetensors_header(SafetensorsHeader& header);

class SafetensorsFile {
 public:
  // Opens and checks the whole header; reads no tensor.
  explicit SafetensorsFile(const std::string& path, Symlinks symlinks = Symlinks::follow);

  const std::string& path() const { return file_.path(); }
  const InputFile& file() const { return file_; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const TensorInfo* find(std::string_view name) const;  // nullptr when there is none

  // Fills `into` with the tensor's bytes from `first_byte` on; they must lie inside it.
  void read(const TensorInfo& tensor, std::span<std::byte> into,
            std::uint64_t first_byte = 0) const;

 private:
  InputFile file_;
  SafetensorsHeader header_;
  std::map<std::string_view, std::size_t> by_name_;
};

struct WrittenFile {
  std::uint64_t bytes = 0;
  std::string sha256;
};

// Writes one file, a tensor at a time in the order of tensors(), and never holds more than a
// megabyte. Without commit, nothing is left behind. Disk errors as in AtomicFile.
class SafetensorsWriter {
 public:
  // `tensors` in any order; each name once.
  SafetensorsWriter(FileSystem& files, const std::string& path, std::vector<TensorSpec> tensors,
                    std::map<std::string, std::string> metadata = {});

  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }

  // The next bytes of the current tensor: whole, or in pieces that add up to it exactly.
  void write(std::span<const std::byte> bytes);

  WrittenFile commit();

 private:
  void put(std::span<const std::byte> bytes);

  SafetensorsHeader header_;
  AtomicFile file_;
  Sha256 hash_;
  std::uint64_t written_ = 0;
  std::uint64_t end_ = 0;  // of the last tensor
  std::size_t next_ = 0;   // the tensor being written
};

}  // namespace sluice
