#include "sluice/runtime/attention_plans.h"

#include <algorithm>
#include <chrono>

#include "sluice/cuda/device.h"
#include "sluice/model/attention_packed.h"

namespace sluice {

std::string AttentionPlans::line() const {
  return fmt::format(
      "prepared {} cuDNN attention plans for documents of {} to {} tokens in {:.1f} s", count,
      shortest, longest, seconds);
}

AttentionPlans make_attention_plans(const RunPlan& plan, const Machine& machine,
                                    const Dataset& data) {
  const TensorKind kind = tensor_kind(plan, machine.device);
  if (!kind.on_gpu()) return {};
  const int tensor_ranks = plan.mesh.tensor;
  std::vector<std::int64_t> lengths = long_lengths(plan.shape, tensor_ranks, kind.dtype,
                                                   plan.slice_bounds(), machine.long_document);
  const std::int64_t longest = data.longest_document();
  if (lengths.empty() || longest < lengths.front()) return {};
  const auto last = std::lower_bound(lengths.begin(), lengths.end(), longest);
  if (last != lengths.end()) lengths.erase(last + 1, lengths.end());
  const auto start = std::chrono::steady_clock::now();
  make_attention_plans(lengths, local_shape(plan.shape, tensor_ranks), kind.values());
  cuda::synchronize();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return {.count = 2 * static_cast<int>(lengths.size()),
          .shortest = lengths.front(),
          .longest = lengths.back(),
          .seconds = taken.count()};
}

}  // namespace sluice
