#include "sluice/plan/flexsp/bound.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace sluice::flexsp {

FractionBound::FractionBound(const Prices& prices, std::span<const std::int64_t> lengths)
    : prices_(prices), lengths_(lengths), tokens_{0}, squares_{0} {
  for (const std::int64_t length : lengths) {
    const auto s = static_cast<double>(length);
    tokens_.push_back(tokens_.back() + s);
    squares_.push_back(squares_.back() + s * s);
  }
  // All lengths are multiples of this, so a group cannot fill more of its room.
  std::int64_t unit = 0;
  for (const std::int64_t length : lengths)
    unit = std::gcd(unit, length);
  for (const Prices::Degree& degree : prices.degrees())
    rooms_.push_back(static_cast<double>(unit > 0 ? degree.room / unit * unit : degree.room));
}

double FractionBound::work(const Prices::Degree& degree, std::size_t first,
                           std::size_t last) const {
  return degree.square * (squares_[last] - squares_[first]) +
         degree.least_token * (tokens_[last] - tokens_[first]);
}

FractionBound::Limit FractionBound::limit(double load) const {
  Limit out{load, {}};
  const double spare = static_cast<double>(prices_.all_room()) - tokens_.back();
  std::size_t most = lengths_.size();
  for (const Prices::Degree& degree : prices_.degrees()) {
    // The other groups cannot take so many tokens that fewer than these are left for this one.
    const double tokens = std::max(0.0, static_cast<double>(degree.room) - spare);
    const auto fits = [&](std::int64_t length) {
      const auto s = static_cast<double>(length);
      const double more = std::max(0.0, tokens - s);
      return length <= degree.room && degree.load(s) + degree.token * more / degree.degree <= load;
    };
    const auto first = std::partition_point(lengths_.begin(), lengths_.end(),
                                            [&](std::int64_t length) { return !fits(length); });
    most = std::min(most, static_cast<std::size_t>(first - lengths_.begin()));
    out.too_long.push_back(most);
  }
  return out;
}

bool FractionBound::may_fit(std::size_t first, std::span<const Left> left,
                            const Limit& limit) const {
  return memory_suffices(first, left, limit) && time_suffices(first, left, limit);
}

bool FractionBound::time_suffices(std::size_t first, std::span<const Left> left,
                                  const Limit& limit) const {
  const std::size_t count = lengths_.size();
  std::size_t place = first;
  double taken = 0;  // share of the sequence at `place` that is placed
  for (std::size_t k = prices_.size(); k-- > 0 && place < count;) {
    double seconds = left[k].seconds;
    if (seconds <= 0) continue;
    if (place < limit.too_long[k]) return false;
    const Prices::Degree& degree = prices_[k];
    const double rest = work(degree, place, place + 1) * (1 - taken);
    if (seconds < rest) {
      taken += (1 - taken) * seconds / rest;
      continue;
    }
    seconds -= rest;
    ++place;
    taken = 0;
    // The last place up to which all fits.
    std::size_t low = place, high = count;
    while (low < high) {
      const std::size_t middle = (low + high + 1) / 2;
      if (work(degree, place, middle) <= seconds)
        low = middle;
      else
        high = middle - 1;
    }
    seconds -= work(degree, place, low);
    place = low;
    if (place < count) taken = seconds / work(degree, place, place + 1);
  }
  return place >= count;
}

bool FractionBound::memory_suffices(std::size_t first, std::span<const Left> left,
                                    const Limit& limit) const {
  // A hair more than there is, so that rounding never rules out what fits.
  constexpr double kHair = 1 + 1e-12;
  const std::size_t count = lengths_.size();
  double tokens_below = 0;  // of smaller groups
  for (const Left& own : left)
    tokens_below += own.tokens;
  if (tokens_[count] - tokens_[first] > tokens_below * kHair) return false;
  double seconds = 0, needed = 0, tokens = 0;
  std::size_t placed = first;
  for (std::size_t k = prices_.size(); k-- > 0;) {
    seconds += left[k].seconds;
    tokens += left[k].tokens;
    tokens_below -= left[k].tokens;
    // Those that are too long for smaller groups, each where it costs least.
    const std::size_t last = k == 0 ? count : std::max(placed, limit.too_long[k - 1]);
    needed += work(prices_[k], placed, last);
    placed = last;
    if (needed > seconds * kHair || tokens_[last] - tokens_[first] > tokens * kHair) return false;
    const double more = tokens_[count] - tokens_[last] - tokens_below * kHair;
    if (more <= 0) continue;
    // The shortest, as far as they have so many tokens.
    const auto shortest =
        std::partition_point(tokens_.begin() + static_cast<std::ptrdiff_t>(last), tokens_.end(),
                             [&](double before) { return tokens_[count] - before > more; });
    const auto from = static_cast<std::size_t>(shortest - tokens_.begin());
    double spilled = work(prices_[k], from, count);
    if (from > last)
      spilled += work(prices_[k], from - 1, from) * (more - (tokens_[count] - tokens_[from])) /
                 (tokens_[from] - tokens_[from - 1]);
    if (needed + spilled > seconds * kHair) return false;
  }
  return true;
}

bool FractionBound::may_fit(const GroupMix& mix, const Limit& limit) const {
  std::array<Left, kMostDegrees> left;
  for (std::size_t k = 0; k < mix.size(); ++k) {
    const double devices = static_cast<double>(mix[k]) * prices_[k].degree;
    left[k] = {devices * limit.load, mix[k] * rooms_[k]};
  }
  return may_fit(0, std::span(left).first(mix.size()), limit);
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

std::optional<GroupMix> FractionBound::smallest_groups(const Limit& limit) const {
  if (limit.too_long.back() > 0) return std::nullopt;
  GroupMix mix(prices_.size());
  int left = prices_.devices();
  double seconds = 0, tokens = 0;  // that groups have to spare
  for (std::size_t k = prices_.size(); k-- > 0;) {
    const Prices::Degree& degree = prices_[k];
    const std::size_t last = k == 0 ? lengths_.size() : limit.too_long[k - 1];
    const double own_seconds = work(degree, limit.too_long[k], last);
    const double own_tokens = tokens_[last] - tokens_[limit.too_long[k]];
    const double devices =
        std::max((own_seconds - seconds) / limit.load,
                 (own_tokens - tokens) / static_cast<double>(prices_.capacity()));
    mix[k] = std::max(0, static_cast<int>(std::ceil(devices / degree.degree)));
    left -= mix[k] * degree.degree;
    if (left < 0) return std::nullopt;
    seconds += mix[k] * degree.degree * limit.load - own_seconds;
    tokens += static_cast<double>(mix[k]) * static_cast<double>(degree.room) - own_tokens;
  }
  mix[0] += left / prices_[0].degree;
  return mix;
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

FractionBound::Least FractionBound::least(std::span<const GroupMix> mixes, double from,
                                          double tolerance) const {
  if (lengths_.empty()) return {};
  const double floor = least(tolerance);
  const GroupMix* best = nullptr;
  Limit below = limit(from);
  for (const GroupMix& mix : mixes) {
    if (below.load <= floor) break;
    if (!may_fit(mix, below)) continue;
    double low = floor, high = below.load;
    while (high - low > tolerance * low) {
      const double middle = (low + high) / 2;
      (may_fit(mix, limit(middle)) ? high : low) = middle;
    }
    best = &mix;
    below = limit(high * (1 - tolerance));
  }
  return {std::max(floor, below.load), best};
}

}  // namespace sluice::flexsp
