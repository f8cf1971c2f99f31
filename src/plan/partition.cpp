#include "sluice/plan/partition.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "sluice/base/error.h"
#include "sluice/plan/device_group.h"

namespace sluice {
namespace {

constexpr double kNone = DeviceGroup::kNone;
using Layers = std::vector<std::int64_t>;

std::vector<int> distinct_stages(const Placement& placement, int device) {
  const std::vector<int>& placed = placement.stages_of(device);
  const std::set<int> stages(placed.begin(), placed.end());
  return {stages.begin(), stages.end()};
}

void check_number(const PartitionQuery& query) {
  const int stages = query.placement.num_stages();
  if (query.layers < std::max(stages - 2, 0))
    throw user_error(
        "model.layers is {}: too few for {} stages, even with embedding and head as stages of "
        "their own; use fewer stages",
        query.layers, stages);
}

// No split needs less on the device that comes nearest to its cap.
[[noreturn]] void throw_least_cap(const PartitionQuery& query, double least_cap) {
  const int stages = query.placement.num_stages();
  const auto mebibytes = [](double bytes) { return bytes / (1 << 20); };
  const auto up = [&](double bytes) { return std::ceil(mebibytes(bytes) * 100) / 100; };
  if (query.memory_caps.size() > 1)
    throw user_error(
        "parallelism.device_memory_mib lists {} caps: no split of {} layers over {} stages fits; "
        "each has to be {:.6g} MiB larger",
        query.memory_caps.size(), query.layers, stages, up(least_cap - query.largest_cap()));
  throw user_error(
      "parallelism.device_memory_mib is {:.6g}: no split of {} layers over {} stages fits; the "
      "least possible is {:.6g}",
      mebibytes(query.largest_cap()), query.layers, stages, up(least_cap));
}

class Partitioner {
 public:
  Partitioner(const PartitionQuery& query, std::vector<DeviceGroup> groups)
      : query_(query),
        layers_(query.layers),
        num_stages_(query.placement.num_stages()),
        layer_(query.work.layer),
        cap_(query.largest_cap()),
        groups_(std::move(groups)) {}

  Layers run() {
    limit_by_memory();
    limit_by_work();
    find_splits();
    // Every way to deal within the ranges has the least work. The least cap on memory that costs
    // nothing in spread leaves out the numbers that need more.
    const double least_spread = deal(kNone, nullptr).first;
    std::vector<double> caps;
    for (const auto& splits : splits_)
      for (const DeviceGroup::Split& split : splits)
        caps.push_back(split.bytes);
    std::sort(caps.begin(), caps.end());
    const double cap = *std::partition_point(caps.begin(), caps.end(), [&](double bytes) {
      return deal(bytes, nullptr).first > least_spread;
    });
    Layers chosen;
    deal(cap, &chosen);
    Layers out(static_cast<std::size_t>(num_stages_), 0);
    for (std::size_t g = 0; g < groups_.size(); ++g)
      for (std::size_t s = 0; s < groups_[g].stages().size(); ++s)
        out[static_cast<std::size_t>(groups_[g].stages()[s])] = split(g, chosen[g]).layers[s];
    return out;
  }

 private:
  // The numbers of layers a group may get.
  struct Range {
    std::int64_t first = 0, last = 0;
  };
  const DeviceGroup::Split& split(std::size_t group, std::int64_t layers) const {
    return splits_[group][static_cast<std::size_t>(layers - ranges_[group].first)];
  }

  // More layers never take less, so the search ends with the first number that does not fit.
  void limit_by_memory() {
    std::int64_t fitting = 0;
    bool all_fit = true;
    for (const DeviceGroup& group : groups_) {
      Range range{group.least_layers(), layers_};
      if (cap_ < kNone) {
        range.last = range.first - 1;
        while (range.last < layers_ && group.least_bytes(range.last + 1, cap_) <= cap_)
          ++range.last;
      }
      all_fit = all_fit && range.last >= range.first;
      fitting += range.last;
      ranges_.push_back(range);
    }
    if (!all_fit || fitting < layers_) throw_too_small();
  }

  // Each further layer to the group that is smallest with it: no other way needs less.
  [[noreturn]] void throw_too_small() const {
    std::vector<std::int64_t> dealt;
    std::vector<double> next;
    double least_cap = 0;
    std::int64_t left = layers_;
    for (const DeviceGroup& group : groups_) {
      dealt.push_back(group.least_layers());
      left -= group.least_layers();
      least_cap = std::max(least_cap, group.least_bytes(group.least_layers()));
      next.push_back(group.least_bytes(group.least_layers() + 1));
    }
    for (; left > 0; --left) {
      const auto g =
          static_cast<std::size_t>(std::min_element(next.begin(), next.end()) - next.begin());
      least_cap = std::max(least_cap, next[g]);
      next[g] = groups_[g].least_bytes(++dealt[g] + 1);
    }
    throw_least_cap(query_, least_cap);
  }

  // The least W for which groups that work no longer than W can hold all layers.
  void limit_by_work() {
    std::vector<double> candidates;
    double base = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      base = std::max(base, groups_[g].work(ranges_[g].first));
      for (std::int64_t n = ranges_[g].first; n <= ranges_[g].last; ++n)
        candidates.push_back(groups_[g].work(n));
    }
    std::sort(candidates.begin(), candidates.end());
    const auto most_within = [&](std::size_t g, double work) {
      std::int64_t low = ranges_[g].first, high = ranges_[g].last;
      while (low < high) {
        const std::int64_t middle = (low + high + 1) / 2;
        if (groups_[g].work(middle) <= work)
          low = middle;
        else
          high = middle - 1;
      }
      return low;
    };
    const auto holds_all = [&](double work) {
      std::int64_t sum = 0;
      for (std::size_t g = 0; g < groups_.size(); ++g)
        sum += most_within(g, work);
      return work >= base && sum >= layers_;
    };
    const double least_work = *std::partition_point(candidates.begin(), candidates.end(),
                                                    [&](double w) { return !holds_all(w); });
    std::int64_t sum = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g)
      sum += ranges_[g].last = most_within(g, least_work);
    // With all others as large as they can be, so much is left for each.
    for (Range& range : ranges_)
      range.first = std::max(range.first, layers_ - (sum - range.last));
  }

  void find_splits() {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      auto& splits = splits_.emplace_back();
      for (std::int64_t n = ranges_[g].first; n <= ranges_[g].last; ++n)
        splits.push_back(groups_[g].best_split(n, cap_));
    }
  }

  // In millionths of a layer, so that sums are exact and equal ones compare equal.
  double counted(double spread) const {
    return layer_ > 0 ? std::round(spread / layer_ * 1e6) : spread;
  }

  // Of all ways to give each group a number of layers in its range so that all are dealt and no
  // device needs more than `cap`: the least sum of spreads, then of squared work; and in `chosen`
  // the numbers. kNone: there is none.
  using Value = std::pair<double, double>;
  Value deal(double cap, Layers* chosen) const {
    const auto width = static_cast<std::size_t>(layers_) + 1;
    const Value none{kNone, kNone};
    std::vector<Value> best(width, none);
    std::vector<Layers> taken(groups_.size(), Layers(width, -1));  // by the last group, of a sum
    best[0] = {0, 0};
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      std::vector<Value> next(width, none);
      for (std::int64_t n = ranges_[g].first; n <= ranges_[g].last; ++n) {
        if (split(g, n).bytes > cap) continue;
        const double spread = counted(split(g, n).spread);
        const double square = std::pow(groups_[g].work(n), 2);
        for (std::size_t sum = 0; sum + static_cast<std::size_t>(n) < width; ++sum) {
          const Value value{best[sum].first + spread, best[sum].second + square};
          const std::size_t with = sum + static_cast<std::size_t>(n);
          if (best[sum] == none || value >= next[with]) continue;
          next[with] = value;
          taken[g][with] = n;
        }
      }
      best = std::move(next);
    }
    if (!chosen) return best.back();
    std::size_t sum = width - 1;
    chosen->assign(groups_.size(), 0);
    for (std::size_t g = groups_.size(); g-- > 0;) {
      (*chosen)[g] = taken[g][sum];
      sum -= static_cast<std::size_t>(taken[g][sum]);
    }
    return best.back();
  }

  const PartitionQuery& query_;
  const std::int64_t layers_;
  const int num_stages_;
  const double layer_;
  const double cap_;  // the largest; devices with a smaller one count as so much larger
  const std::vector<DeviceGroup> groups_;
  std::vector<Range> ranges_;
  std::vector<std::vector<DeviceGroup::Split>> splits_;  // by group and number within its range
};

// Devices that share some of their stages with one device and others with another. A split is
// better where less is over a cap, then by the work of the devices, busiest first; moves of one
// layer, or of two that cross, go on for as long as one makes it better.
class SharedStages {
 public:
  explicit SharedStages(const PartitionQuery& query)
      : query_(query), num_stages_(static_cast<std::size_t>(query.placement.num_stages())) {}

  Layers run() const {
    Layers best;
    Value value;
    for (const Layers& start : starts()) {
      Layers split = start;
      const Value found = improve(split);
      if (best.empty() || found < value) {
        best = std::move(split);
        value = found;
      }
    }
    if (value.over > 0) throw_least_cap(query_, query_.largest_cap() + value.over);
    return best;
  }

 private:
  struct Value {
    double over = 0;           // bytes that a device needs beyond its cap
    std::vector<double> work;  // of the devices, most first, in millionths of the mean
    double bytes = 0;          // of the device that comes nearest to its cap
    friend auto operator<=>(const Value&, const Value&) = default;
  };

  std::int64_t least(std::size_t stage) const {
    return stage == 0 || stage + 1 == num_stages_ ? 0 : 1;
  }

  // Even layers; and each to the stage whose busiest holder has least to do.
  std::vector<Layers> starts() const {
    Layers even(num_stages_, query_.layers / query_.placement.num_stages()), dealt(num_stages_, 0);
    for (std::size_t s = 0; s < static_cast<std::size_t>(query_.layers) % num_stages_; ++s)
      ++even[s];
    // Too few for each stage to have one: those at the ends go without.
    for (const std::size_t end : {std::size_t{0}, num_stages_ - 1})
      for (std::size_t s = 1; s + 1 < num_stages_; ++s)
        if (even[s] == 0 && even[end] > 0) {
          --even[end];
          ++even[s];
        }
    std::int64_t left = query_.layers;
    for (std::size_t s = 0; s < num_stages_; ++s)
      left -= dealt[s] = least(s);
    for (; left > 0; --left) {
      std::size_t lowest = 0;
      std::vector<double> of_lowest;
      for (std::size_t s = 0; s < num_stages_; ++s) {
        ++dealt[s];
        std::vector<double> work = value_of(dealt).work;
        --dealt[s];
        if (s > 0 && work >= of_lowest) continue;
        lowest = s;
        of_lowest = std::move(work);
      }
      ++dealt[lowest];
    }
    return {even, dealt};
  }

  Value value_of(const Layers& layers) const {
    Value value;
    value.work = device_work(query_, layers);
    double sum = 0;
    for (const double work : value.work)
      sum += work;
    const double unit = sum > 0 ? sum / static_cast<double>(value.work.size()) / 1e6 : 1;
    for (double& work : value.work)
      work = std::round(work / unit);
    std::sort(value.work.rbegin(), value.work.rend());
    if (query_.memory.empty()) return value;
    const std::vector<double> bytes = device_bytes(query_, layers);
    for (std::size_t d = 0; d < bytes.size(); ++d)
      value.bytes = std::max(value.bytes, bytes[d] + query_.below_largest_cap(static_cast<int>(d)));
    value.over = std::max(0.0, value.bytes - query_.largest_cap());
    return value;
  }

  // From one stage to another, and with it, perhaps, from a third to a fourth.
  Value improve(Layers& split) const {
    Value value = value_of(split);
    const auto with_move = [&](std::size_t from, std::size_t to, const auto& next) {
      if (from == to || split[from] <= least(from)) return false;
      --split[from];
      ++split[to];
      if (next()) return true;
      ++split[from];
      --split[to];
      return false;
    };
    const auto is_better = [&] {
      Value other = value_of(split);
      if (other >= value) return false;
      value = std::move(other);
      return true;
    };
    const auto any_move = [&](const auto& next) {
      for (std::size_t from = 0; from < num_stages_; ++from)
        for (std::size_t to = 0; to < num_stages_; ++to)
          if (with_move(from, to, next)) return true;
      return false;
    };
    constexpr std::size_t kFewStages = 16;  // beyond, pairs of moves are too many
    while (any_move(is_better) ||
           (num_stages_ <= kFewStages && any_move([&] { return any_move(is_better); }))) {
    }
    return value;
  }

  const PartitionQuery& query_;
  const std::size_t num_stages_;
};

}  // namespace

std::vector<std::int64_t> best_partition(const PartitionQuery& query) {
  check_number(query);
  if (auto groups = device_groups(query)) return Partitioner(query, std::move(*groups)).run();
  return SharedStages(query).run();
}

std::vector<double> device_work(const PartitionQuery& query, std::span<const std::int64_t> layers) {
  const Placement& placement = query.placement;
  std::vector<double> out(static_cast<std::size_t>(placement.num_devices()), 0);
  for (int pipe = 0; pipe < placement.num_pipes(); ++pipe)
    for (int stage = 0; stage < placement.num_stages(); ++stage)
      out[static_cast<std::size_t>(placement.device_of(pipe, stage))] +=
          (ends_work(query, stage) +
           static_cast<double>(layers[static_cast<std::size_t>(stage)]) * query.work.layer) /
          placement.num_pipes();
  return out;
}

std::vector<double> device_bytes(const PartitionQuery& query,
                                 std::span<const std::int64_t> layers) {
  std::vector<double> out;
  for (int device = 0; device < query.placement.num_devices(); ++device) {
    Layers own;
    for (const int stage : distinct_stages(query.placement, device))
      own.push_back(layers[static_cast<std::size_t>(stage)]);
    out.push_back(query.memory[static_cast<std::size_t>(device)].bytes(own));
  }
  return out;
}

}  // namespace sluice
