// What sequences cost, fitted to measurements (cost/sequence_costs.h).
#pragma once

#include <cstdint>
#include <span>

namespace sluice {

// So many sequences of one length, on one rank alone.
struct SequencePoint {
  std::int64_t length = 0;
  std::int64_t count = 0;
  double seconds = 0;
};

// count (a1 length^2 + a2 length) + b1, and how far it is from the points, as a share of each.
struct SequenceFit {
  double a1 = 0, a2 = 0, b1 = 0;
  double mean_error = 0, largest_error = 0;
};

// The least sum of squared relative errors with no term below 0. REQUIRES: a point; seconds are
// positive.
SequenceFit fit_sequences(std::span<const SequencePoint> points);

}  // namespace sluice
