#include "sluice/plan/device_group.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace sluice {

double ends_work(const PartitionQuery& query, int stage) {
  return (stage == 0 ? query.work.embedding : 0) +
         (stage + 1 == query.placement.num_stages() ? query.work.head : 0);
}

DeviceGroup::DeviceGroup(const PartitionQuery& query, std::vector<int> stages, double share)
    : layer_(query.work.layer), share_(share), stages_(std::move(stages)) {
  for (const int stage : stages_) {
    ends_.push_back(ends_work(query, stage));
    ends_sum_ += ends_.back();
    least_.push_back(stage == 0 || stage + 1 == query.placement.num_stages() ? 0 : 1);
  }
}

std::int64_t DeviceGroup::least_layers() const {
  return std::accumulate(least_.begin(), least_.end(), std::int64_t{0});
}

double DeviceGroup::spread(const Layers& split) const {
  double low = kNone, high = 0;
  for (std::size_t s = 0; s < split.size(); ++s) {
    low = std::min(low, stage_work(s, split[s]));
    high = std::max(high, stage_work(s, split[s]));
  }
  return high - low;
}

double DeviceGroup::bytes(const Layers& split) const {
  double most = 0;
  for (const DeviceMemory& device : devices_)
    most = std::max(most, device.bytes(split));
  return most;
}

// Each layer to the stage with least to do: the lowest is as high and the highest as low as they
// can be, so the spread is the smallest there is.
DeviceGroup::Layers DeviceGroup::level(std::int64_t layers) const {
  Layers split = least_;
  for (std::int64_t dealt = least_layers(); dealt < layers; ++dealt) {
    std::size_t lowest = 0;
    for (std::size_t s = 1; s < split.size(); ++s)
      if (stage_work(s, split[s]) < stage_work(lowest, split[lowest])) lowest = s;
    ++split[lowest];
  }
  return split;
}

// Every split of `left` layers over the stages from `stage` on that `wanted` does not rule out. It
// is asked with the least and the most work of the stages dealt so far and with memory that cannot
// be undercut.
template <typename Found, typename Wanted>
void DeviceGroup::deal(std::size_t stage, std::int64_t left, double low, double high, Layers& split,
                       Found& found, Wanted& wanted) const {
  if (stage == split.size()) return found(split);
  const bool last = stage + 1 == split.size();
  const auto rest = least_.begin() + static_cast<std::ptrdiff_t>(stage) + 1;
  const std::int64_t most = left - std::accumulate(rest, least_.end(), std::int64_t{0});
  for (std::int64_t n = last ? left : least_[stage]; n >= least_[stage] && n <= most; ++n) {
    split[stage] = n;
    const double work = stage_work(stage, n);
    const double lowest = std::min(low, work), highest = std::max(high, work);
    if (wanted(lowest, highest, bytes_at_least(stage + 1, left - n, split)))
      deal(stage + 1, left - n, lowest, highest, split, found, wanted);
  }
  split[stage] = 0;
}

// With `left` more layers, all on whichever of the stages from `stage` on takes least.
double DeviceGroup::bytes_at_least(std::size_t stage, std::int64_t left,
                                   const Layers& split) const {
  const auto total = left + std::accumulate(split.begin(), split.end(), std::int64_t{0});
  double most = 0;
  for (const DeviceMemory& device : devices_) {
    double stash = 0;
    for (const StashMoment& moment : device.moments) {
      double sum = moment.ends;
      for (std::size_t s = 0; s < stage; ++s)
        sum += static_cast<double>(split[s]) * moment.per_layer[s];
      const auto rest = moment.per_layer.begin() + static_cast<std::ptrdiff_t>(stage);
      if (left > 0)
        sum += static_cast<double>(left) * *std::min_element(rest, moment.per_layer.end());
      stash = std::max(stash, sum);
    }
    most = std::max(most, device.fixed + static_cast<double>(total) * device.per_layer + stash);
  }
  return most;
}

DeviceGroup::Split DeviceGroup::best_split(std::int64_t layers, double cap) const {
  const double spread = least_spread(layers, cap);
  return spread < kNone ? least_memory(layers, spread, -kNone) : Split{};
}

double DeviceGroup::least_spread(std::int64_t layers, double cap) const {
  const Layers even = level(layers);
  if (bytes(even) <= cap) return spread(even);
  double best = kNone;
  const auto found = [&](const Layers& split) { best = std::min(best, spread(split)); };
  const auto wanted = [&](double low, double high, double memory) {
    return high - low < best && memory <= cap;
  };
  Layers split(stages_.size(), 0);
  deal(0, layers, kNone, 0, split, found, wanted);
  return best;
}

DeviceGroup::Split DeviceGroup::least_memory(std::int64_t layers, double most_spread,
                                             double enough) const {
  Split best;
  Layers split = level(layers);
  if (spread(split) <= most_spread) best = {spread(split), bytes(split), split};
  const auto found = [&](const Layers& better) { best = {spread(better), bytes(better), better}; };
  const auto wanted = [&](double low, double high, double memory) {
    return high - low <= most_spread && memory < best.bytes && best.bytes > enough;
  };
  split.assign(stages_.size(), 0);
  deal(0, layers, kNone, 0, split, found, wanted);
  return best;
}

std::optional<std::vector<DeviceGroup>> device_groups(const PartitionQuery& query) {
  const Placement& placement = query.placement;
  std::map<std::vector<int>, std::size_t> index;  // by the stages of a device, with repeats
  std::vector<DeviceGroup> groups;
  std::map<int, std::size_t> owner;  // by stage
  for (int device = 0; device < placement.num_devices(); ++device) {
    std::vector<int> held = placement.stages_of(device);
    if (held.empty()) continue;
    std::sort(held.begin(), held.end());
    const std::set<int> stages(held.begin(), held.end());
    const std::size_t copies = held.size() / stages.size();
    const auto [at, added] = index.try_emplace(held, groups.size());
    if (added)
      groups.emplace_back(query, std::vector<int>(stages.begin(), stages.end()),
                          static_cast<double>(copies) / placement.num_pipes());
    for (const int stage : stages) {
      const auto held_here = std::count(held.begin(), held.end(), stage);
      if (owner.try_emplace(stage, at->second).first->second != at->second ||
          static_cast<std::size_t>(held_here) != copies)
        return std::nullopt;
    }
    DeviceMemory memory =
        query.memory.empty() ? DeviceMemory{} : query.memory[static_cast<std::size_t>(device)];
    memory.fixed += query.below_largest_cap(device);
    groups[at->second].add_device(std::move(memory));
  }
  return groups;
}

}  // namespace sluice
