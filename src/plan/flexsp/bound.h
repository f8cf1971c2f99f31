// Lower bounds on the time of a microbatch, whatever its groups and whoever computes what.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sluice/plan/flexsp/group_mix.h"

namespace sluice::flexsp {

// Sequences of a microbatch, longest first, of which groups of each degree take fractions. Two
// arguments tell that they do not fit:
// - Time. Longer sequences exchange less per second of work, so it is best if the largest groups
// take
//   the longest. Where their time is up before all have a place, no other division does.
// - Memory. What is too long for small groups, and the tokens for which these have no memory, must
// be
//   in larger ones, whose time may not suffice even if those are the tokens of the shortest. And
//   where little memory is left over, a group with a long sequence must hold many other tokens,
//   too.
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
  // The same of sequences `first` and later, with so much left in the groups of each degree.
  struct Left {
    double seconds = 0;  // of one device
    double tokens = 0;
  };
  bool may_fit(std::size_t first, std::span<const Left> left, const Limit& limit) const;
  // The same whatever the groups.
  bool may_fit(const Limit& limit) const;

  // Groups that take every sequence at this load as fractions, each in one of the smallest degree
  // that may have it; devices that are left over are in groups of the smallest degree. Nothing
  // where there are too few devices.
  std::optional<GroupMix> smallest_groups(const Limit& limit) const;

  // The least load that no such argument rules out, within `tolerance` of it, whatever the groups.
  // REQUIRES: the devices hold all tokens.
  double least(double tolerance) const;
  // The same with one of these mixes, which is the first that may have so little; null: all have
  // more than `from`, and so much is returned.
  struct Least {
    double load = 0;
    const GroupMix* mix = nullptr;
  };
  Least least(std::span<const GroupMix> mixes, double from, double tolerance) const;

 private:
  double work(const Prices::Degree& degree, std::size_t first, std::size_t last) const;
  bool time_suffices(std::size_t first, std::span<const Left> left, const Limit& limit) const;
  bool memory_suffices(std::size_t first, std::span<const Left> left, const Limit& limit) const;

  const Prices& prices_;
  std::span<const std::int64_t> lengths_;
  std::vector<double> tokens_, squares_;  // of the first n sequences
  std::vector<double> rooms_;             // tokens that a group of each degree can hold of them
};

}  // namespace sluice::flexsp
