#include "sluice/plan/flexsp/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace sluice::flexsp {

std::vector<Bin> best_fit_decreasing(std::span<const std::int64_t> lengths, std::int64_t room) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
  std::vector<Bin> bins;
  std::set<std::pair<std::int64_t, std::size_t>> by_room;  // room left, number of the bin
  for (const std::size_t sequence : order) {
    auto found = by_room.lower_bound({lengths[sequence], 0});
    std::pair<std::int64_t, std::size_t> bin{room, bins.size()};
    if (found == by_room.end()) {
      bins.emplace_back();
    } else {
      bin = *found;
      by_room.erase(found);
    }
    bins[bin.second].push_back(static_cast<std::int64_t>(sequence));
    by_room.insert({bin.first - lengths[sequence], bin.second});
  }
  return bins;
}

}  // namespace sluice::flexsp
