#include "sluice/schedule/generators/adaptive_v_search.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace sluice::vee {

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;

// How many orders per amount of memory are filled in more than one way, and those ways: what share
// of a pass a gap must hold before the pass may fill it (1/patience).
constexpr std::size_t kShortlist = 4;
constexpr double kPatiences[] = {1.5, 2, 3, kUnlimited};

// Bounds of the search on large pipelines: rows of blocks made (about 56 blocks per choice of hops
// are legal), and passes played. 32 devices with 128 microbatches stay well below both.
constexpr double kMaxBlockRows = 1e6;
constexpr double kBlocksPerHop = 56;
constexpr double kMaxPlayed = 8e7;

Costs costs_of(const GeneratorOptions& options) {
  Costs costs;
  costs.comm = options.comm;
  for (int d = 0; d < options.devices; ++d) {
    const OpTimes& chunk0 = options.times_of(d);
    const OpTimes& chunk1 = options.times_of(2 * options.devices - 1 - d);
    costs.duration.insert(costs.duration.end(),
                          {chunk0.f, chunk1.f, chunk1.i, chunk0.i, chunk1.w, chunk0.w});
  }
  return costs;
}

// The slices of a microbatch, equal ones as 1 each.
std::vector<std::int64_t> sizes_of(const GeneratorOptions& options) {
  if (!options.slice_sizes.empty()) return options.slice_sizes;
  return std::vector<std::int64_t>(static_cast<std::size_t>(options.slices), 1);
}

// The time of every pass where all are equal and messages take none, else 0.
double common_time(const Costs& costs, const Units& units) {
  const double first = costs.duration[0];
  const bool equal = std::all_of(costs.duration.begin(), costs.duration.end(),
                                 [&](double time) { return time == first; });
  const bool equal_units = units.whole() == units.num_slices();
  return equal && equal_units && costs.comm == 0 ? first / units.num_slices() : 0;
}

int hop_step(int devices) {
  const double choices = std::max(1.0, kMaxBlockRows / devices / kBlocksPerHop);
  return static_cast<int>(std::ceil(devices / choices));
}

double most(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

std::size_t at(int n) { return static_cast<std::size_t>(n); }

}  // namespace

Search::Search(const GeneratorOptions& options)
    : devices_(options.devices),
      num_units_(options.microbatches * options.slices),
      delay_(options.slices - 1),
      full_units_(std::max(num_units_, 2 * devices_ + delay_)),
      most_units_(2 * devices_ + 2 * delay_),
      cap_(options.memory_cap.value_or(0)),
      keep_after_i_(options.keep_after_i),
      units_(sizes_of(options), full_units_),
      unit_(common_time(costs_of(options), units_)),
      player_(devices_, num_units_, units_, costs_of(options)),
      blocks_(make_blocks(devices_, hop_step(devices_))),
      played_{Order(devices_, num_units_), 0},
      best_{Order(devices_, num_units_), kUnlimited},
      fill_limits_(at(devices_)) {
  // Where I frees something, the strict count gives other orders; they fit all the more.
  for (const double keep : std::set{keep_after_i_, 1.0})
    for (const Block& block : blocks_) {
      const double peak = peak_of(block, delay_, keep);
      const int limit = static_cast<int>(std::ceil(peak - kRounding));
      if (limit > most_units_) continue;
      groups_[{peak, false, keep}].push_back({&block, limit, limit});
      if (num_units_ <= devices_)
        groups_[{2.0 * num_units_, true, keep}].push_back({&block, limit, 2 * num_units_});
    }
}

const Order* Search::best() {
  search_up_to(cap_.least());
  // Where caps or slices differ: orders of fuller blocks too, in which a device waits for room.
  strict_ = !cap_.uniform() || !equal_units();
  if (strict_) search_up_to(cap_.most());
  strict_ = false;
  // The short ones above may all have been too large.
  if (best_.span == kUnlimited && !(cap_.uniform() && peaks_known()))
    play_all([&] {
      keep_if_best();
      return true;
    });
  return best_.span < kUnlimited ? &best_.order : nullptr;
}

void Search::consider_sliced(const Order& whole) {
  const Order order = sliced(whole, units_.num_slices());
  for (int d = 0; d < devices_; ++d)
    fill_limits_[at(d)] = sized_cap(d);
  for (const double patience : {0.0, 1.0})
    if (player_.play(order, {fill_limits_, false, keep_after_i_, patience, kUnlimited}, played_))
      keep_if_best();
}

Search::Nearest Search::nearest() {
  Nearest nearest{kUnlimited, std::vector<double>(at(devices_), 2.0 * devices_)};
  play_all([&] {
    std::vector<double> peaks = peaks_played();
    double excess = 0;
    for (int d = 0; d < devices_; ++d)
      excess = std::max(excess, peaks[at(d)] - cap_.of(d));
    if (excess < nearest.excess) nearest = {excess, std::move(peaks)};
    return !(cap_.uniform() && peaks_known());  // else the leanest block, which comes first, is it
  });
  return nearest;
}

std::optional<Order> Search::prepare(const Key& key, const Candidate& candidate) {
  num_played_ += 6.0 * devices_ * full_units_;
  Order order = repeat(*candidate.block, delay_, full_units_);
  rewrite_warm_up(order, delay_, candidate.block_limit);
  if (!is_within(order, candidate.block_limit, key.keep_after_i)) return std::nullopt;
  if (num_units_ < full_units_) order = cut(order, num_units_);
  if (key.postponed) {
    postpone_weights(order);
  } else {
    if (!player_.squeeze(order, slots_)) return std::nullopt;
    rewrite_cool_down(order, delay_, slots_, candidate.limit);
  }
  return order;
}

bool Search::play(const Key& key, const Order& order, int limit, double patience, double give_up) {
  const double size_of_unit = static_cast<double>(units_.whole()) / units_.num_slices();
  for (int d = 0; d < devices_; ++d)
    fill_limits_[at(d)] = strict_ ? sized_cap(d) : limit * size_of_unit + kRounding;
  const double keep = strict_ ? keep_after_i_ : key.keep_after_i;
  return player_.play(order, {fill_limits_, strict_, keep, patience, give_up}, played_);
}

// Every candidate, however long it takes; `visit` says whether to go on.
template <typename Visit>
void Search::play_all(Visit visit) {
  num_played_ = 0;
  for (const auto& [key, candidates] : groups_)
    for (const Candidate& candidate : candidates)
      if (const auto order = prepare(key, candidate);
          order && play(key, *order, candidate.limit, 1, kUnlimited))
        if (!visit() || num_played_ > kMaxPlayed) return;
}

void Search::search_up_to(double cap) {
  // The fullest first: they are the likely winners, and let the others give up early.
  const double units = cap * (1 + kRounding) * units_.num_slices();
  const auto above = groups_.upper_bound({units, true, 1});
  for (auto group = std::make_reverse_iterator(above); group != groups_.rend(); ++group)
    search_group(*group);
  // Others may have a lower peak than their block.
  if (!peaks_known())
    for (auto group = above; group != groups_.end(); ++group)
      search_group(*group);
}

void Search::search_group(const Groups::value_type& group) {
  const auto& [key, candidates] = group;
  std::vector<Finalist> finalists;
  for (const Candidate& candidate : candidates) {
    if (enough()) return;
    auto order = prepare(key, candidate);
    if (!order) continue;
    // At equal times every gap holds a whole pass, so that patience changes nothing.
    const double give_up = unit_ > 0                        ? best_.span
                           : finalists.size() == kShortlist ? finalists.back().span
                                                            : kUnlimited;
    if (!play(key, *order, candidate.limit, 1, give_up)) continue;
    if (unit_ == 0) add_finalist(finalists, {std::move(*order), candidate.limit, played_.span});
    keep_if_best();
  }
  for (const Finalist& finalist : finalists)
    for (const double patience : kPatiences) {
      if (enough()) return;
      num_played_ += 6.0 * devices_ * num_units_;
      if (play(key, finalist.order, finalist.limit, patience, best_.span)) keep_if_best();
    }
}

void Search::add_finalist(std::vector<Finalist>& finalists, Finalist finalist) {
  const auto place =
      std::upper_bound(finalists.begin(), finalists.end(), finalist,
                       [](const Finalist& a, const Finalist& b) { return a.span < b.span; });
  finalists.insert(place, std::move(finalist));
  if (finalists.size() > kShortlist) finalists.pop_back();
}

bool Search::equal_units() const { return units_.whole() == units_.num_slices(); }

// Whether an order has the peak of its block: nothing is cut off, and all units are equal.
bool Search::peaks_known() const { return num_units_ == full_units_ && equal_units(); }

// Of the order played, in stage-activations.
std::vector<double> Search::peaks_played() const {
  std::vector<double> peaks = peaks_of(played_.order, units_, keep_after_i_);
  for (double& peak : peaks)
    peak /= static_cast<double>(units_.whole());
  return peaks;
}

void Search::keep_if_best() {
  const std::vector<double> peaks = peaks_played();
  for (int d = 0; d < devices_; ++d)
    if (peaks[at(d)] > cap_.of(d) * (1 + kRounding)) return;
  if (std::pair(played_.span, most(peaks)) >= std::pair(best_.span, best_peak_)) return;
  std::swap(best_, played_);
  best_peak_ = most(peaks);
}

// Whether to stop: the best is as good as this search gets, or it has run for too long.
bool Search::enough() const {
  if (num_played_ > (best_.span < kUnlimited ? kMaxPlayed : 2 * kMaxPlayed)) return true;
  if (unit_ == 0 || strict_ || delay_ > 0 || keep_after_i_ != 1 || num_units_ < full_units_)
    return false;
  // At equal times no block has done better than this, on any number of devices tried.
  const int p = devices_;
  const int k = static_cast<int>(std::min(cap_.least() * (1 + kRounding), 2.0 * p));
  const int bubble = k == 2 * p ? 0 : k == 2 * p - 1 ? 3 : 6 * p - 1 - 3 * k;
  return best_.span <= unit_ * (6.0 * num_units_ + bubble) * (1 + kRounding);
}

// In sizes of units.
double Search::sized_cap(int device) const {
  return cap_.of(device) * (1 + kRounding) * static_cast<double>(units_.whole());
}

}  // namespace sluice::vee
