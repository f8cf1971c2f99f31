#include "sluice/plan/flexsp/buckets.h"

#include <algorithm>
#include <limits>

namespace sluice::flexsp {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// The different lengths, ascending, and sums over the first n of them.
struct Sums {
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> count{0}, tokens{0};

  explicit Sums(std::span<const std::int64_t> all) {
    std::vector<std::int64_t> sorted(all.begin(), all.end());
    std::sort(sorted.begin(), sorted.end());
    for (const std::int64_t length : sorted) {
      if (lengths.empty() || lengths.back() != length) {
        lengths.push_back(length);
        count.push_back(count.back());
        tokens.push_back(tokens.back());
      }
      ++count.back();
      tokens.back() += length;
    }
  }
  // Of a bucket that has the lengths from `first` up to, without, `last`.
  std::int64_t error(std::size_t first, std::size_t last) const {
    return lengths[last - 1] * (count[last] - count[first]) - (tokens[last] - tokens[first]);
  }
};

// One more bucket at the end: now[i] is the least error of the first i lengths, whose last bucket
// begins at from[i]. The best place to begin never moves back as i grows, so half of the range is
// ruled out at every step.
struct Extension {
  const Sums& sums;
  const std::vector<std::int64_t>& before;
  std::vector<std::int64_t>& now;
  std::vector<std::size_t>& from;

  void solve(std::size_t first, std::size_t last, std::size_t low, std::size_t high) {
    if (first > last) return;
    const std::size_t middle = (first + last) / 2;
    for (std::size_t j = low; j <= std::min(high, middle - 1); ++j) {
      if (before[j] == kNever) continue;
      const std::int64_t error = before[j] + sums.error(j, middle);
      if (error < now[middle]) {
        now[middle] = error;
        from[middle] = j;
      }
    }
    solve(first, middle - 1, low, from[middle]);
    solve(middle + 1, last, from[middle], high);
  }
};

std::int64_t error_of(std::span<const std::int64_t> lengths, const Buckets& buckets) {
  std::int64_t error = 0;
  for (const std::int64_t length : lengths)
    error += buckets.limits[buckets.of(length)] - length;
  return error;
}

}  // namespace

std::size_t Buckets::of(std::int64_t length) const {
  return static_cast<std::size_t>(std::lower_bound(limits.begin(), limits.end(), length) -
                                  limits.begin());
}

Buckets best_buckets(std::span<const std::int64_t> lengths, int count) {
  const Sums sums(lengths);
  const std::size_t different = sums.lengths.size();
  const std::size_t most = std::min(static_cast<std::size_t>(count), different);
  std::vector<std::vector<std::size_t>> from(most + 1, std::vector<std::size_t>(different + 1));
  std::vector<std::int64_t> before(different + 1, kNever), now;
  before[0] = 0;
  for (std::size_t q = 1; q <= most; ++q) {
    now.assign(different + 1, kNever);
    // q buckets need q lengths.
    Extension{sums, before, now, from[q]}.solve(q, different, q - 1, different - 1);
    std::swap(before, now);
  }
  Buckets out{{}, before[different]};
  for (std::size_t i = different, q = most; q > 0; i = from[q--][i])
    out.limits.push_back(sums.lengths[i - 1]);
  std::reverse(out.limits.begin(), out.limits.end());
  return out;
}

Buckets fixed_buckets(std::span<const std::int64_t> lengths, std::int64_t width) {
  Buckets out;
  const Sums sums(lengths);
  for (const std::int64_t length : sums.lengths) {
    const std::int64_t limit = std::min((length + width - 1) / width * width, sums.lengths.back());
    if (out.limits.empty() || out.limits.back() != limit) out.limits.push_back(limit);
  }
  out.error = error_of(lengths, out);
  return out;
}

Buckets no_buckets(std::span<const std::int64_t> lengths) { return {Sums(lengths).lengths, 0}; }

std::vector<std::int64_t> rounded_up(std::span<const std::int64_t> lengths,
                                     const Buckets& buckets) {
  std::vector<std::int64_t> out;
  for (const std::int64_t length : lengths)
    out.push_back(buckets.limits[buckets.of(length)]);
  return out;
}

}  // namespace sluice::flexsp
