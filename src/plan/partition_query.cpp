#include "sluice/plan/partition_query.h"

#include <algorithm>
#include <limits>

namespace sluice {

double PartitionQuery::largest_cap() const {
  return memory_caps.empty() ? std::numeric_limits<double>::infinity()
                             : *std::max_element(memory_caps.begin(), memory_caps.end());
}

double PartitionQuery::below_largest_cap(int device) const {
  return memory_caps.size() < 2 ? 0 : largest_cap() - memory_caps[static_cast<std::size_t>(device)];
}

double DeviceMemory::bytes(std::span<const std::int64_t> layers) const {
  double stash = 0, count = 0;
  for (const std::int64_t n : layers)
    count += static_cast<double>(n);
  for (const StashMoment& moment : moments) {
    double sum = moment.ends;
    for (std::size_t s = 0; s < layers.size(); ++s)
      sum += static_cast<double>(layers[s]) * moment.per_layer[s];
    stash = std::max(stash, sum);
  }
  return fixed + count * per_layer + stash;
}

}  // namespace sluice
