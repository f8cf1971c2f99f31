// What the layers of a model are dealt by: the work of its parts, and the memory of each device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/schedule/placement.h"

namespace sluice {

// Of a microbatch through a part of the model, forward and backward, in any unit.
struct PartWork {
  double layer = 1;
  double embedding = 0;
  double head = 0;
};

// What the stashes of a device hold at one moment of its program.
struct StashMoment {
  std::vector<double> per_layer;  // of one layer of each of its stages, ascending, each once
  double ends = 0;                // of embedding and head

  friend auto operator<=>(const StashMoment&, const StashMoment&) = default;
};

// What a device needs as a function of the layers of its stages: their weights and states, and the
// largest moment of their stashes.
struct DeviceMemory {
  double fixed = 0;      // whatever the split: embedding, head, buffers, workspace
  double per_layer = 0;  // weights, gradients and optimizer states of one layer
  std::vector<StashMoment> moments;

  double bytes(std::span<const std::int64_t> layers) const;  // of its stages, as in per_layer
};

struct PartitionQuery {
  Placement placement;
  std::int64_t layers = 0;
  PartWork work;
  std::vector<DeviceMemory> memory;  // one per device; empty: layers take no memory
  std::vector<double> memory_caps;   // bytes: of every device, or one per device; empty: none

  // The largest of the caps; infinity: there is none.
  double largest_cap() const;
  // By how much less than that the device may use.
  double below_largest_cap(int device) const;
};

}  // namespace sluice
