// What a rank hands to other ranks, in elements, by what it is for.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <string_view>

namespace sluice {

enum class TrafficClass {
  tensor_layer,     // inside the layers, between tensor ranks
  embedding,        // likewise in the embedding
  loss,             // likewise in head and loss
  boundary,         // activations and gradients between pipeline stages
  boundary_gather,  // the parts of a boundary tensor, put together among tensor ranks
  gradient,         // gradients between data ranks
  parameter,        // updated weights between data ranks
  norm,             // gradients of weights that several tensor ranks hold, norms above all
  sequence,         // heads for tokens and back, between ranks that share sequences
  optimizer         // momentum of a matrix, put together among tensor ranks (Muon)
};
inline constexpr int kNumTrafficClasses = 10;

constexpr std::string_view traffic_name(TrafficClass traffic) {
  constexpr std::string_view kNames[] = {"tensor-layer",    "embedding", "loss",      "boundary",
                                         "boundary-gather", "gradient",  "parameter", "norm",
                                         "sequence",        "optimizer"};
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
  std::int64_t total() const {
    return std::accumulate(elements_.begin(), elements_.end(), std::int64_t{0});
  }
  Traffic& operator+=(const Traffic& other) {
    for (std::size_t n = 0; n < elements_.size(); ++n)
      elements_[n] += other.elements_[n];
    return *this;
  }
  // Of each class at least what `other` has.
  void raise_to(const Traffic& other) {
    for (std::size_t n = 0; n < elements_.size(); ++n)
      elements_[n] = std::max(elements_[n], other.elements_[n]);
  }
  bool operator==(const Traffic&) const = default;

 private:
  std::array<std::int64_t, kNumTrafficClasses> elements_{};
};

}  // namespace sluice
