// What a rank hands to other ranks, in elements, by what it is for: as counted in a run, and as the
// model, the schedule and the mesh say it will be.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "cost/model_costs.h"
#include "schedule/schedule.h"

namespace sluice {

enum class TrafficClass {
  tensor_layer,     // inside the layers, between tensor ranks
  embedding,        // likewise in the embedding
  loss,             // likewise in head and loss
  boundary,         // activations and gradients between pipeline stages
  boundary_gather,  // the parts of a boundary tensor, put together among tensor ranks
  gradient,         // gradients between data ranks
  parameter,        // updated weights between data ranks
  norm              // gradients of weights that several tensor ranks hold, norms above all
};
inline constexpr int kNumTrafficClasses = 8;

constexpr std::string_view traffic_name(TrafficClass traffic) {
  constexpr std::string_view kNames[] = {"tensor-layer",    "embedding", "loss",      "boundary",
                                         "boundary-gather", "gradient",  "parameter", "norm"};
  return kNames[static_cast<std::size_t>(traffic)];
}

class Traffic {
 public:
  void add(TrafficClass traffic, std::int64_t elements) {
    elements_[static_cast<std::size_t>(traffic)] += elements;
  }
  std::int64_t of(TrafficClass traffic) const {
    return elements_[static_cast<std::size_t>(traffic)];
  }
  std::int64_t total() const;
  bool operator==(const Traffic&) const = default;

 private:
  std::array<std::int64_t, kNumTrafficClasses> elements_{};
};

// Of one step, on each tensor rank of a device and of a data rank. Exact where the tokens of a
// slice divide among the tensor ranks. `lowered` has its sends and receives.
Traffic step_traffic(const StagedModel& model, const Schedule& lowered, int device,
                     int data_rank = 0);

}  // namespace sluice
