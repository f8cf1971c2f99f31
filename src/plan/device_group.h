// Devices that hold the same stages, and every split of layers over them. Part of partition.cpp.
#pragma once

#include <limits>
#include <optional>

#include "sluice/plan/partition_query.h"

namespace sluice {

// One device, or the copies of a stage set in several pipes. No other device holds any of these
// stages, so how the group's layers are split over them is its own business.
class DeviceGroup {
 public:
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  using Layers = std::vector<std::int64_t>;

  // `share`: of a stage's microbatches that each of the devices takes.
  DeviceGroup(const PartitionQuery& query, std::vector<int> stages, double share);
  void add_device(DeviceMemory memory) { devices_.push_back(std::move(memory)); }

  const std::vector<int>& stages() const { return stages_; }
  std::int64_t least_layers() const;
  double work(std::int64_t layers) const {  // of each of its devices
    return share_ * (ends_sum_ + static_cast<double>(layers) * layer_);
  }

  struct Split {
    double spread = kNone;  // between the work of two of its stages, at most
    double bytes = kNone;   // of the device that needs most
    Layers layers;
  };
  // Of all splits within the cap those with the least spread, and of those the one with the least
  // memory. Without one, kNone.
  Split best_split(std::int64_t layers, double cap) const;

  // The least memory with so many layers; the search may end where `enough` is reached.
  double least_bytes(std::int64_t layers, double enough = -kNone) const {
    return least_memory(layers, kNone, enough).bytes;
  }

 private:
  double stage_work(std::size_t stage, std::int64_t layers) const {
    return ends_[stage] + static_cast<double>(layers) * layer_;
  }
  double least_spread(std::int64_t layers, double cap) const;
  Split least_memory(std::int64_t layers, double most_spread, double enough) const;
  double spread(const Layers& split) const;
  double bytes(const Layers& split) const;
  Layers level(std::int64_t layers) const;
  template <typename Found, typename Wanted>
  void deal(std::size_t stage, std::int64_t left, double low, double high, Layers& split,
            Found& found, Wanted& wanted) const;
  double bytes_at_least(std::size_t stage, std::int64_t left, const Layers& split) const;

  double layer_, share_, ends_sum_ = 0;
  std::vector<int> stages_;
  std::vector<double> ends_;  // of each stage: work of what it holds besides layers
  Layers least_;              // of each stage
  std::vector<DeviceMemory> devices_;
};

// All devices of the placement in groups; nothing where some share a part of their stages.
std::optional<std::vector<DeviceGroup>> device_groups(const PartitionQuery& query);

// Work of a stage without its layers.
double ends_work(const PartitionQuery& query, int stage);

}  // namespace sluice
