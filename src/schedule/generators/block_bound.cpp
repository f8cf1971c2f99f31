#include "sluice/schedule/generators/block_bound.h"

#include <algorithm>

namespace sluice {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// Where each activation of a device's stages is freed, one slot per chunk.
std::vector<int> ends_of(const BuildingBlock& block, int device) {
  const std::vector<int>& stages = block.placement.stages_of(device);
  std::vector<bool> taken(at(block.period), false);
  for (const int s : stages)
    taken[at(block.forward[at(s)] % block.period)] =
        taken[at(block.backward[at(s)] % block.period)] = true;
  std::vector<int> ends(stages.size());
  for (std::size_t c = stages.size(); c-- > 0;) {
    const auto s = at(stages[c]);
    if (block.fused || !block.weight.empty()) {
      ends[c] = block.fused ? block.backward[s] + 2 : block.weight[s] + 1;
      continue;
    }
    int slot = block.backward[s] + 1;
    while (taken[at(slot % block.period)])
      ++slot;
    taken[at(slot % block.period)] = true;
    ends[c] = slot + 1;
  }
  return ends;
}

// What the first n slices of a microbatch hold, for n from 0 to k.
std::vector<double> first_slices(const Schedule& schedule) {
  std::vector<double> first = {0};
  for (int n = 0; n < schedule.num_slices; ++n)
    first.push_back(first.back() + schedule.slice_share(n));
  return first;
}

// The most that `count` slices in flight can hold. W take the slices of a microbatch last to first,
// so those in flight are the first slices of the oldest microbatch, of the newest, and all between.
double most_held(const std::vector<double>& first, int count) {
  const int k = static_cast<int>(first.size()) - 1;
  double most = 0;
  for (int n = 0; n <= std::min(k, count); ++n)
    most = std::max(most, first[at(n)] + (count - n) / k + first[at((count - n) % k)]);
  return most;
}

}  // namespace

BlockBound bound_of(const BuildingBlock& block, const Schedule& schedule) {
  BlockBound bound;
  bound.period = block.period;
  const std::vector<double> first = first_slices(schedule);
  for (int d = 0; d < block.placement.num_devices(); ++d) {
    const std::vector<int>& stages = block.placement.stages_of(d);
    std::vector<int>& lifespans = bound.lifespans.emplace_back(ends_of(block, d));
    double peak = 0;
    for (std::size_t c = 0; c < stages.size(); ++c) {
      lifespans[c] -= block.forward[at(stages[c])];
      const int in_flight = (lifespans[c] + block.period - 1) / block.period;
      peak += most_held(first, in_flight + schedule.num_slices - 1);
    }
    if (peak <= bound.peak) continue;
    bound.peak = peak;
    bound.device = d;
  }
  return bound;
}

}  // namespace sluice
