#include "sluice/plan/flexsp/bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::flexsp {

FractionBound::FractionBound(const Prices& prices, std::span<const std::int64_t> lengths)
    : prices_(prices), lengths_(lengths), tokens_{0}, squares_{0} {
  for (const std::int64_t length : lengths) {
    const auto s = static_cast<double>(length);
    tokens_.push_back(tokens_.back() + s);
    squares_.push_back(squares_.back() + s * s);
  }
}

double FractionBound::work(const Prices::Degree& degree, std::size_t first,
                           std::size_t last) const {
  return degree.square * (squares_[last] - squares_[first]) +
         degree.least_token * (tokens_[last] - tokens_[first]);
}

FractionBound::Limit FractionBound::limit(double load) const {
  Limit out{load, {}};
  std::size_t most = lengths_.size();
  for (const Prices::Degree& degree : prices_.degrees()) {
    const auto fits = [&](std::int64_t length) {
      return length <= degree.room && degree.load(static_cast<double>(length)) <= load;
    };
    const auto first = std::partition_point(lengths_.begin(), lengths_.end(),
                                            [&](std::int64_t length) { return !fits(length); });
    most = std::min(most, static_cast<std::size_t>(first - lengths_.begin()));
    out.too_long.push_back(most);
  }
  return out;
}

bool FractionBound::may_fit(std::size_t first, std::span<const double> seconds,
                            const Limit& limit) const {
  const std::size_t count = lengths_.size();
  std::size_t place = first;
  double taken = 0;  // share of the sequence at `place` that is placed
  for (std::size_t k = prices_.size(); k-- > 0 && place < count;) {
    if (seconds[k] <= 0) continue;
    if (place < limit.too_long[k]) return false;
    const Prices::Degree& degree = prices_[k];
    double left = seconds[k];
    const double rest = work(degree, place, place + 1) * (1 - taken);
    if (left < rest) {
      taken += (1 - taken) * left / rest;
      continue;
    }
    left -= rest;
    ++place;
    taken = 0;
    // The last place up to which all fits.
    std::size_t low = place, high = count;
    while (low < high) {
      const std::size_t middle = (low + high + 1) / 2;
      if (work(degree, place, middle) <= left)
        low = middle;
      else
        high = middle - 1;
    }
    left -= work(degree, place, low);
    place = low;
    if (place < count) taken = left / work(degree, place, place + 1);
  }
  return place >= count;
}

bool FractionBound::may_fit(const GroupMix& mix, const Limit& limit) const {
  std::vector<double> seconds(mix.size());
  double devices = 0;
  for (std::size_t k = mix.size(); k-- > 0;) {
    const double own = static_cast<double>(mix[k]) * prices_[k].degree;
    seconds[k] = own * limit.load;
    devices += own;
    const std::size_t here = k == 0 ? lengths_.size() : limit.too_long[k - 1];
    if (tokens_[here] > devices * static_cast<double>(prices_.capacity())) return false;
  }
  return may_fit(0, seconds, limit);
}

bool FractionBound::may_fit(const Limit& limit) const {
  if (limit.too_long.back() > 0) return false;
  double seconds = 0;  // of one device, in groups of this degree and larger ones
  for (std::size_t k = prices_.size(); k-- > 0;) {
    const std::size_t last = k == 0 ? lengths_.size() : limit.too_long[k - 1];
    seconds += work(prices_[k], limit.too_long[k], last);
    const double devices =
        std::max(seconds / limit.load, tokens_[last] / static_cast<double>(prices_.capacity()));
    const double degree = prices_[k].degree;
    // A hair less, so that rounding never rules out what fits.
    if (std::ceil(devices / degree * (1 - 1e-12)) * degree > prices_.devices()) return false;
  }
  return true;
}

double FractionBound::least(double tolerance) const {
  if (lengths_.empty()) return 0;
  double low = prices_.least_load(lengths_[0]), high = low;
  if (may_fit(limit(low))) return low;
  // Memory alone may rule all out: devices that hold all tokens need not hold them in whole groups.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  if (!may_fit(limit(kNever))) return kNever;
  while (!may_fit(limit(high)))
    high *= 2;
  while (high - low > tolerance * low) {
    const double middle = (low + high) / 2;
    (may_fit(limit(middle)) ? high : low) = middle;
  }
  return low;
}

double FractionBound::least(std::span<const GroupMix> mixes, double from, double tolerance) const {
  if (lengths_.empty()) return 0;
  const double floor = least(tolerance);
  double best = from;
  Limit below = limit(best * (1 - tolerance));
  for (const GroupMix& mix : mixes) {
    if (best <= floor) return floor;
    if (!may_fit(mix, below)) continue;
    double low = floor, high = below.load;
    while (high - low > tolerance * low) {
      const double middle = (low + high) / 2;
      (may_fit(mix, limit(middle)) ? high : low) = middle;
    }
    best = high;
    below = limit(best * (1 - tolerance));
  }
  return std::max(floor, below.load);
}

}  // namespace sluice::flexsp
