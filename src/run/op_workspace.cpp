#include "sluice/run/op_workspace.h"

#include <algorithm>

namespace sluice {

std::int64_t head_chunk(std::int64_t words, bool gpu) {
  constexpr std::int64_t kLeast = 256;
  constexpr std::int64_t kLogits = std::int64_t{1} << 28;  // enough to keep a GPU busy
  return gpu ? std::max(kLeast, kLogits / words / kLeast * kLeast) : kLeast;
}

}  // namespace sluice
