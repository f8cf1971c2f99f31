#include "runtime/attention_plans.h"

#include <algorithm>
#include <chrono>

#include "cuda/device.h"
#include "model/attention_packed.h"
#include "runtime/trainer.h"

namespace sluice {

std::string AttentionPlans::line() const {
  return fmt::format(
      "prepared {} cuDNN attention plans for documents of {} to {} tokens in {:.1f} s", count,
      shortest, longest, seconds);
}

AttentionPlans make_attention_plans(const TrainerOptions& options, const SliceBounds& bounds,
                                    const Dataset& data, int tensor_ranks) {
  if (!options.kind.on_gpu()) return {};
  std::vector<std::int64_t> lengths =
      long_lengths(options.shape, tensor_ranks, options.kind.dtype, bounds, options.long_document);
  const std::int64_t longest = data.longest_document();
  if (lengths.empty() || longest < lengths.front()) return {};
  const auto last = std::lower_bound(lengths.begin(), lengths.end(), longest);
  if (last != lengths.end()) lengths.erase(last + 1, lengths.end());
  const auto start = std::chrono::steady_clock::now();
  make_attention_plans(lengths, local_shape(options.shape, tensor_ranks), options.kind.values());
  cuda::synchronize();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return {.count = 2 * static_cast<int>(lengths.size()),
          .shortest = lengths.front(),
          .longest = lengths.back(),
          .seconds = taken.count()};
}

}  // namespace sluice
