#include "sluice/runtime/files/digest.h"

#include <algorithm>

#include "sluice/runtime/files/sha256.h"

namespace sluice {
namespace {

constexpr std::int64_t kPieceBytes = 4 << 20;

// Rows that are read at once.
std::int64_t rows_per_piece(const TensorSpec& tensor, std::int64_t bytes) {
  const std::int64_t rows = std::max<std::int64_t>(num_rows(tensor), 1);
  if (dtype_bits(tensor.dtype) % 8 != 0) return rows;  // a row may end inside a byte
  return std::max<std::int64_t>(1, kPieceBytes / std::max<std::int64_t>(bytes / rows, 1));
}

}  // namespace

CheckpointDigest digest(const Checkpoint& checkpoint) {
  CheckpointDigest out;
  Sha256 all;
  std::vector<std::byte> buffer;
  for (const TensorSpec& tensor : checkpoint.tensors()) {
    const TensorRole role = role_of(tensor.name);
    Sha256 own;
    const std::int64_t rows = num_rows(tensor);
    const std::int64_t step = rows_per_piece(
        tensor, static_cast<std::int64_t>(tensor_bytes(tensor.dtype, tensor.shape).value()));
    for (std::int64_t begin = 0; begin < rows; begin += step) {
      const std::int64_t end = std::min(begin + step, rows);
      const Box box = rows_of(tensor, begin, end);
      buffer.resize(tensor_bytes(tensor.dtype, stored_form({tensor, box}).shape).value());
      checkpoint.read_box(tensor, box, buffer);
      own.update(buffer);
      if (role == TensorRole::weight) all.update(buffer);
    }
    auto& list = role == TensorRole::weight  ? out.weights
                 : role == TensorRole::state ? out.states
                                             : out.older;
    list.push_back({tensor, own.hex()});
  }
  out.weights_sha256 = all.hex();
  return out;
}

}  // namespace sluice
