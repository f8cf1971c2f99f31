// Lower bounds on the time of a microbatch, whatever its groups and whoever computes what.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/plan/flexsp/group_mix.h"

namespace sluice::flexsp {

// Sequences of a microbatch, longest first, of which groups of each degree take fractions: a group
// is full when its time is up. Longer sequences cost less per second of exchange, so the largest
// groups take the longest: no other division has room where this has none.
class FractionBound {
 public:
  // REQUIRES: descending lengths, which outlive it; each fits a group of some degree.
  FractionBound(const Prices& prices, std::span<const std::int64_t> lengths);

  // What a load allows: which sequences have to be in groups of which degree at least.
  struct Limit {
    double load = 0;
    // By number of the degree: so many sequences, the longest, fit no group of it or of a smaller
    // degree.
    std::vector<std::size_t> too_long;
  };
  Limit limit(double load) const;

  // False: with these groups no plan has a load as small as the limit's. REQUIRES: too_long is that
  // of the load.
  bool may_fit(const GroupMix& mix, const Limit& limit) const;
  // The same of sequences `first` and later, with this much time (of one device) left in the groups
  // of each degree.
  bool may_fit(std::size_t first, std::span<const double> seconds, const Limit& limit) const;
  // The same whatever the groups.
  bool may_fit(const Limit& limit) const;

  // The least load that no such argument rules out, within `tolerance` of it, whatever the groups.
  // REQUIRES: the devices hold all tokens.
  double least(double tolerance) const;
  // The same with one of these mixes; at most `from`, where a plan has that. It only looks at mixes
  // that may have less.
  double least(std::span<const GroupMix> mixes, double from, double tolerance) const;

 private:
  double work(const Prices::Degree& degree, std::size_t first, std::size_t last) const;

  const Prices& prices_;
  std::span<const std::int64_t> lengths_;
  std::vector<double> tokens_, squares_;  // of the first n sequences
};

}  // namespace sluice::flexsp
