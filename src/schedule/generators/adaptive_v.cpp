// Adaptive V: the best V schedule under any memory cap. Every building block of period 6 is
// repeated, its warm-up and cool-down are rewritten, its holes filled; the shortest span wins. With
// slices the blocks repeat slices, as v-min's does.
// Three devices, six microbatches, cap 5 (F I W: chunk 0; f i w: chunk 1); a bubble of 3:
//   FFFF.fiwfiw.IWfiwFIWfiwFIWfiw.fiIwIWIWW
//   .FFFf.fiwFiIWfw.iIWfFwiIWfFwifIwiIwIWWW
//   ..FfFfF.iwIifWwFIifWwFIifWwFfIiIwiIwWWW
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "schedule/generators/adaptive_v_order.h"
#include "schedule/generators/adaptive_v_player.h"
#include "schedule/generators/generator.h"
#include "schedule/generators/passes.h"

namespace sluice::generators {

namespace {

using vee::Block;
using vee::Order;
using vee::Played;

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

Pass pass_of(vee::Letter letter) {
  switch (letter) {
    case vee::F0: return {OpKind::F, 0};
    case vee::F1: return {OpKind::F, 1};
    case vee::I1: return {OpKind::I, 1};
    case vee::I0: return {OpKind::I, 0};
    case vee::W1: return {OpKind::W, 1};
    case vee::W0: return {OpKind::W, 0};
  }
  return {};
}

vee::Costs costs_of(const GeneratorOptions& options) {
  vee::Costs costs;
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
  const std::vector<std::int64_t>& sizes = options.slice_sizes;
  if (sizes.empty() ||
      std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>()) == sizes.end())
    return std::vector<std::int64_t>(static_cast<std::size_t>(options.slices), 1);
  return sizes;
}

// The time of every pass where all are equal and messages take none, else 0.
double common_time(const vee::Costs& costs, const vee::Units& units) {
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

class Search {
 public:
  explicit Search(const GeneratorOptions& options)
      : devices_(options.devices),
        num_units_(options.microbatches * options.slices),
        delay_(options.slices - 1),
        full_units_(std::max(num_units_, 2 * devices_ + delay_)),
        cap_(options.memory_cap.value_or(0) * (1 + kRounding)),
        keep_after_i_(options.keep_after_i),
        units_(sizes_of(options), full_units_),
        unit_(common_time(costs_of(options), units_)),
        player_(devices_, num_units_, units_, costs_of(options)),
        blocks_(vee::make_blocks(devices_, hop_step(devices_))),
        played_{Order(devices_, num_units_), 0},
        best_{Order(devices_, num_units_), kUnlimited} {
    // Where I frees something, the strict count gives other orders; they fit all the more.
    for (const double keep : std::set{keep_after_i_, 1.0})
      for (const Block& block : blocks_) {
        const double peak = vee::peak_of(block, delay_, keep);
        const int limit = static_cast<int>(std::ceil(peak - kRounding));
        if (limit > 2 * devices_ + 2 * delay_) continue;
        groups_[{peak, false, keep}].push_back({&block, limit, limit});
        if (num_units_ <= devices_)
          groups_[{2.0 * num_units_, true, keep}].push_back({&block, limit, 2 * num_units_});
      }
  }

  // The best order whose peak is at most the cap; null where there is none. What a candidate
  // becomes does not depend on the cap: while kMaxPlayed suffices, a larger cap never gives a
  // longer span.
  const Order* best() {
    // The fullest first: they are the likely winners, and let the others give up early.
    const auto above = groups_.upper_bound({cap_ * units_.num_slices(), true, 1});
    for (auto group = std::make_reverse_iterator(above); group != groups_.rend(); ++group)
      search_group(*group);
    // Others may have a lower peak than their block.
    if (!peaks_known())
      for (auto group = above; group != groups_.end(); ++group)
        search_group(*group);
    // The short ones above may all have been too large.
    if (best_.span == kUnlimited && !peaks_known())
      play_all([&] {
        keep_if_best();
        return true;
      });
    return best_.span < kUnlimited ? &best_.order : nullptr;
  }

  // The order of whole microbatches, run slice by slice, as one more candidate. It fits where that
  // order does, and takes no longer.
  void consider_sliced(const Order& whole) {
    const Order order = vee::sliced(whole, units_.num_slices());
    limits_.assign(at(devices_), cap_ * static_cast<double>(units_.whole()));
    for (const double patience : {0.0, 1.0})
      if (player_.play(order, {limits_, keep_after_i_, patience, kUnlimited}, played_))
        keep_if_best();
  }

  // The least peak that this search can reach.
  double lowest_peak() {
    double lowest = 2 * devices_;
    play_all([&] {
      lowest = std::min(lowest, peak_played());
      return !peaks_known();  // else the leanest block, which comes first, has it
    });
    return lowest;
  }

 private:
  struct Candidate {
    const Block* block;
    int block_limit;  // the peak of the block, rounded up
    int limit;        // how much the whole order may stash
  };
  struct Key {
    double memory;
    bool postponed;       // every W last: the fastest way where all microbatches fit at once
    double keep_after_i;  // as the memory was counted
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Finalist {
    Order order;
    int limit;
    double span;
  };

  using Groups = std::map<Key, std::vector<Candidate>>;

  std::optional<Order> prepare(const Key& key, const Candidate& candidate) {
    num_played_ += 6.0 * devices_ * full_units_;
    Order order = vee::repeat(*candidate.block, delay_, full_units_);
    const auto per_device = [&](int limit) { return std::vector<int>(at(devices_), limit); };
    vee::rewrite_warm_up(order, delay_, per_device(candidate.block_limit));
    if (vee::peak_of(order, key.keep_after_i) > candidate.block_limit + kRounding)
      return std::nullopt;
    if (num_units_ < full_units_) order = vee::cut(order, num_units_);
    if (key.postponed) {
      vee::postpone_weights(order);
    } else {
      if (!player_.squeeze(order, slots_)) return std::nullopt;
      vee::rewrite_cool_down(order, delay_, slots_, per_device(candidate.limit));
    }
    return order;
  }

  bool play(const Key& key, const Order& order, int limit, double patience, double give_up) {
    const double size_of_unit = static_cast<double>(units_.whole()) / units_.num_slices();
    limits_.assign(at(devices_), limit * size_of_unit + kRounding);
    return player_.play(order, {limits_, key.keep_after_i, patience, give_up}, played_);
  }

  // Every candidate, however long it takes; `visit` says whether to go on.
  template <typename Visit>
  void play_all(Visit visit) {
    num_played_ = 0;
    for (const auto& [key, candidates] : groups_)
      for (const Candidate& candidate : candidates)
        if (const auto order = prepare(key, candidate);
            order && play(key, *order, candidate.limit, 1, kUnlimited))
          if (!visit() || num_played_ > kMaxPlayed) return;
  }

  void search_group(const Groups::value_type& group) {
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

  static void add_finalist(std::vector<Finalist>& finalists, Finalist finalist) {
    const auto place =
        std::upper_bound(finalists.begin(), finalists.end(), finalist,
                         [](const Finalist& a, const Finalist& b) { return a.span < b.span; });
    finalists.insert(place, std::move(finalist));
    if (finalists.size() > kShortlist) finalists.pop_back();
  }

  // Whether an order has the peak of its block: nothing is cut off, and all units are equal.
  bool peaks_known() const {
    return num_units_ == full_units_ && units_.whole() == units_.num_slices();
  }

  // In stage-activations.
  double peak_played() const {
    const std::vector<double> peaks = vee::peaks_of(played_.order, units_, keep_after_i_);
    return *std::max_element(peaks.begin(), peaks.end()) / static_cast<double>(units_.whole());
  }

  void keep_if_best() {
    const double peak = peak_played();
    if (peak > cap_ || std::pair(played_.span, peak) >= std::pair(best_.span, best_peak_)) return;
    std::swap(best_, played_);
    best_peak_ = peak;
  }

  // Whether to stop: the best is as good as this search gets, or it has run for too long.
  bool enough() const {
    if (num_played_ > (best_.span < kUnlimited ? kMaxPlayed : 2 * kMaxPlayed)) return true;
    if (unit_ == 0 || delay_ > 0 || keep_after_i_ != 1 || num_units_ < full_units_) return false;
    // At equal times no block has done better than this, on any number of devices tried.
    const int p = devices_;
    const int k = static_cast<int>(std::min(cap_, 2.0 * p));
    const int bubble = k == 2 * p ? 0 : k == 2 * p - 1 ? 3 : 6 * p - 1 - 3 * k;
    return best_.span <= unit_ * (6.0 * num_units_ + bubble) * (1 + kRounding);
  }

  static std::size_t at(int n) { return static_cast<std::size_t>(n); }

  int devices_;
  int num_units_;   // slices of all microbatches
  int delay_;       // periods by which slices delay the backwards of a block
  int full_units_;  // enough for a block to reach its steady state
  double cap_;      // in stage-activations
  double keep_after_i_;
  vee::Units units_;
  double unit_;  // the time of every pass where all are equal, else 0
  vee::Player player_;
  std::vector<Block> blocks_;
  Groups groups_;          // by memory in units
  double num_played_ = 0;  // passes
  Played played_;
  Played best_;
  double best_peak_ = 0;
  std::vector<int> slots_;
  std::vector<double> limits_;  // per device, of the play that runs
};

void check_options(const GeneratorOptions& options) {
  if (!(options.keep_after_i >= 0 && options.keep_after_i <= 1))
    throw user_error(
        "--keep-after-i is {}: needs the share of activation memory kept between I and W, from 0 "
        "to 1",
        number(options.keep_after_i));
  const int p = options.devices;
  const double passes = 6.0 * p * std::max(options.microbatches * options.slices, 2 * p);
  if (passes > 2e8)
    throw user_error(
        "--devices is {}: adaptive-v lays out at least 2p microbatches, {:.3g} ops in all; at most "
        "2e+08 are supported; use fewer devices",
        p, passes);
}

// "4 devices and 8 microbatches of 2 slices"
std::string size_text(const GeneratorOptions& options) {
  std::string text =
      fmt::format("{} devices and {} microbatches", options.devices, options.microbatches);
  if (options.slices > 1) text += fmt::format(" of {} slices", options.slices);
  return text;
}

Schedule generate_adaptive_v(const GeneratorOptions& options) {
  check_options(options);
  GeneratorOptions whole = options;
  whole.slices = 1;
  whole.slice_sizes.clear();
  Search search(options), unsliced(whole);
  // Equal slices cannot use more than zb-v.
  const int p = options.devices, k = options.slice_sizes.empty() ? options.slices : 1;
  const std::string most = number((2.0 * p + 2 * (k - 1)) / k);
  const auto least = [&] { return std::min(search.lowest_peak(), unsliced.lowest_peak()); };
  if (!options.memory_cap)
    throw user_error("adaptive-v needs --memory-cap X: from {} to {} stage-activations for {}",
                     number(least()), most, size_text(options));
  if (options.slices > 1)
    if (const Order* order = unsliced.best()) search.consider_sliced(*order);
  const Order* order = search.best();
  if (!order) {
    const double enough = least();
    throw CapTooLow(
        fmt::format("--memory-cap is {}: adaptive-v with {} needs from {} to {} "
                    "stage-activations; raise the cap",
                    number(*options.memory_cap), size_text(options), number(enough), most),
        enough);
  }

  std::vector<PassList> devices(static_cast<std::size_t>(p));
  for (int d = 0; d < p; ++d)
    for (const vee::Letter letter : order->row(d))
      devices[static_cast<std::size_t>(d)].push_back(pass_of(letter));
  return schedule_from_passes("adaptive-v", Placement::vee(p, 2), options.microbatches,
                              options.slices, devices);
}

}  // namespace

extern const Generator adaptive_v;
const Generator adaptive_v = {
    .name = "adaptive-v",
    .aliases = {},
    .summary = "the best V schedule under a memory cap, searched with the real times",
    .bubble = "6p-1-3X at unit times; 3 at X = 2p-1, 0 at X = 2p; less with slices",
    .memory = "at most X, from (2*floor((p+4)/3) + 2(k-1))/k to (2p + 2(k-1))/k",
    .knobs = {.default_stages_per_device = 2, .slices = true, .memory_cap = true, .times = true},
    .generate = generate_adaptive_v,
};

}  // namespace sluice::generators
