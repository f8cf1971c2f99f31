#include "sluice/run/op_workspace.h"

#include <algorithm>

namespace sluice {

std::int64_t head_chunk(std::int64_t words, bool gpu) {
  constexpr std::int64_t kLeast = 256;
  constexpr std::int64_t kLogits = std::int64_t{1} << 28;  // enough to keep a GPU busy
  return gpu ? std::max(kLeast, kLogits / words / kLeast * kLeast) : kLeast;
}

std::int64_t mlp_chunk(const RunPlan& plan, std::int64_t tokens) {
  constexpr std::int64_t kMost = 16384;
  const bool in_chunks = plan.on_gpu() && !plan.shape.encoder() && plan.mesh.tensor == 1 &&
                         plan.recompute() >= RecomputeLevel::mlp;
  return in_chunks ? std::min(tokens, kMost) : tokens;
}

}  // namespace sluice
