// What sequences cost on groups of each size, in the form that planning a batch asks for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/cost/sequence_costs.h"

namespace sluice::flexsp {

// Powers of two of an int.
inline constexpr std::size_t kMostDegrees = 31;

// The devices that share a batch, and what they can do.
struct Cluster {
  int devices = 1;
  std::int64_t capacity_tokens = 0;  // of one device
  std::vector<int> degrees;          // of groups, ascending; powers of two, at most `devices`
  SequenceCosts costs;               // has the bandwidth of each degree above 1
};

// A degree that no group has, and why.
struct ExcludedDegree {
  int degree = 1;
  std::string reason;
};

// All degrees from min_degree to max_degree that divide the heads and whose bandwidth is known.
// Throws UserError where none is left.
std::vector<int> usable_degrees(const SequenceCosts& costs, int devices, int min_degree,
                                int max_degree, std::vector<ExcludedDegree>& excluded);

// Degrees by number, ascending. A group's seconds are overhead() and the load of each of its
// sequences: load = (square s^2 + token s) / degree.
class Prices {
 public:
  struct Degree {
    int degree = 1;
    double square = 0, token = 0;  // seconds of one device, the all-to-all included
    std::int64_t room = 0;         // tokens that a group holds
    // As `token`, but no larger than that of any larger degree: for lower bounds, which take it
    // that smaller groups are cheaper.
    double least_token = 0;

    double load(double length) const { return (square * length + token) * length / degree; }
  };

  explicit Prices(const Cluster& cluster);

  int devices() const { return devices_; }
  double overhead() const { return overhead_; }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t all_room() const { return capacity_ * devices_; }
  std::size_t size() const { return degrees_.size(); }
  const Degree& operator[](std::size_t number) const { return degrees_[number]; }
  std::span<const Degree> degrees() const { return degrees_; }
  // The smallest number of a degree that holds so many tokens; size(): none.
  std::size_t smallest_for(std::int64_t tokens) const;
  // The least load that one sequence can have.
  double least_load(std::int64_t length) const;
  // The least time of one device that it can cost.
  double least_work(std::int64_t length) const;

 private:
  int devices_;
  double overhead_;
  std::int64_t capacity_;
  std::vector<Degree> degrees_;
};

}  // namespace sluice::flexsp
