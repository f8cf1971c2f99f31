#include "sluice/plan/flexsp/priced.h"

#include <algorithm>

namespace sluice::flexsp {

BatchPlan PlannedBatch::plan() const {
  BatchPlan out;
  for (const PlannedMicrobatch& microbatch : microbatches) {
    auto& groups = out.microbatches.emplace_back();
    for (const PlannedGroup& group : microbatch.groups)
      groups.push_back(group.group);
  }
  return out;
}

PlannedBatch priced(const Cluster& cluster, std::span<const std::int64_t> lengths,
                    const BatchPlan& plan) {
  PlannedBatch batch;
  for (const std::vector<SequenceGroup>& groups : plan.microbatches) {
    PlannedMicrobatch& microbatch = batch.microbatches.emplace_back();
    for (const SequenceGroup& group : groups) {
      PlannedGroup& out = microbatch.groups.emplace_back();
      out.group = group;
      TokenSums sums;
      for (const std::int64_t sequence : group.sequences) {
        const std::int64_t length = lengths[static_cast<std::size_t>(sequence)];
        sums.add(static_cast<double>(length));
        out.tokens += length;
      }
      out.seconds = cluster.costs.seconds(group.degree, sums);
      out.all_to_all_seconds = cluster.costs.all_to_all_seconds(group.degree, sums);
      out.bytes = cluster.costs.bytes(group.degree, sums.tokens);
      microbatch.seconds = std::max(microbatch.seconds, out.seconds);
    }
    batch.seconds += microbatch.seconds;
  }
  return batch;
}

}  // namespace sluice::flexsp
