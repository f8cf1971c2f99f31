#include "sluice/plan/flexsp/prices.h"

#include <algorithm>
#include <limits>

#include "sluice/base/error.h"
#include "sluice/base/text.h"

namespace sluice::flexsp {

std::vector<int> usable_degrees(const SequenceCosts& costs, int devices, int min_degree,
                                int max_degree, std::vector<ExcludedDegree>& excluded) {
  if (min_degree > devices)
    throw user_error("`min_degree` is {}, and there are {}: give a smaller one", min_degree,
                     counted(devices, "rank"));
  std::vector<int> usable;
  for (int degree = 1; degree <= devices; degree *= 2) {
    std::string reason;
    if (degree < min_degree || degree > max_degree)
      reason = fmt::format("degrees are limited to {} to {}", min_degree, max_degree);
    else if (costs.heads % degree != 0)
      reason = fmt::format("it does not divide the {}", counted(costs.heads, "head"));
    else if (degree > 1 && !costs.bytes_per_s.contains(degree))
      reason = "the costs have no bandwidth for it";
    if (reason.empty())
      usable.push_back(degree);
    else
      excluded.push_back({degree, std::move(reason)});
    if (degree > std::numeric_limits<int>::max() / 2) break;
  }
  if (usable.empty())
    throw user_error(
        "no group of ranks can share sequences: none of the degrees 1 to {} will do (degree {}: "
        "{})",
        devices, excluded.back().degree, excluded.back().reason);
  return usable;
}

Prices::Prices(const Cluster& cluster)
    : devices_(cluster.devices - cluster.devices % cluster.degrees.front()),
      overhead_(cluster.costs.b1),
      capacity_(cluster.capacity_tokens) {
  const SequenceCosts& costs = cluster.costs;
  for (const int degree : cluster.degrees) {
    const double exchange =
        degree == 1 ? 0 : costs.all_to_all_bytes_per_token / costs.bytes_per_s.at(degree);
    degrees_.push_back({.degree = degree,
                        .square = costs.a1,
                        .token = costs.a2 + exchange,
                        .room = capacity_ * degree,
                        .least_token = 0});
  }
  double least = std::numeric_limits<double>::infinity();
  for (auto degree = degrees_.rbegin(); degree != degrees_.rend(); ++degree)
    degree->least_token = least = std::min(least, degree->token);
}

std::size_t Prices::smallest_for(std::int64_t tokens) const {
  std::size_t number = 0;
  while (number < size() && degrees_[number].room < tokens)
    ++number;
  return number;
}

double Prices::least_load(std::int64_t length) const {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t k = smallest_for(length); k < size(); ++k)
    least = std::min(least, degrees_[k].load(static_cast<double>(length)));
  return least;
}

double Prices::least_work(std::int64_t length) const {
  const std::size_t k = smallest_for(length);
  const auto s = static_cast<double>(length);
  return k < size() ? (degrees_[k].square * s + degrees_[k].least_token) * s
                    : std::numeric_limits<double>::infinity();
}

}  // namespace sluice::flexsp
