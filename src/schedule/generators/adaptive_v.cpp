// Adaptive V: the best V schedule under any memory cap. Every building block of period 6 is
// repeated, its warm-up and cool-down are rewritten, its holes filled; the shortest span wins.
// Three devices, six microbatches, cap 5 (F I W: chunk 0; f i w: chunk 1); a bubble of 3:
//   FFFF.fiwfiw.IWfiwFIWfiwFIWfiw.fiIwIWIWW
//   .FFFf.fiwFiIWfw.iIWfFwiIWfFwifIwiIwIWWW
//   ..FfFfF.iwIifWwFIifWwFIifWwFfIiIwiIwWWW
#include <algorithm>
#include <cmath>
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

// The time of every pass where all are equal and messages take none, else 0.
double common_time(const vee::Costs& costs) {
  const double first = costs.duration[0];
  const bool equal = std::all_of(costs.duration.begin(), costs.duration.end(),
                                 [&](double time) { return time == first; });
  return equal && costs.comm == 0 ? first : 0;
}

int hop_step(int devices) {
  const double choices = std::max(1.0, kMaxBlockRows / devices / kBlocksPerHop);
  return static_cast<int>(std::ceil(devices / choices));
}

class Search {
 public:
  explicit Search(const GeneratorOptions& options)
      : devices_(options.devices),
        microbatches_(options.microbatches),
        full_microbatches_(std::max(microbatches_, 2 * devices_)),
        keep_after_i_(options.keep_after_i),
        unit_(common_time(costs_of(options))),
        player_(devices_, microbatches_, costs_of(options)),
        blocks_(vee::make_blocks(devices_, hop_step(devices_))),
        played_{Order(devices_, microbatches_), 0},
        best_{Order(devices_, microbatches_), kUnlimited} {
    // Where I frees something, the strict count gives other orders; they fit all the more.
    for (const double keep : std::set{keep_after_i_, 1.0})
      for (const Block& block : blocks_) {
        const double peak = vee::peak_of(block, keep);
        const int limit = static_cast<int>(std::ceil(peak - kRounding));
        if (limit > 2 * devices_) continue;
        groups_[{peak, false, keep}].push_back({&block, limit, limit});
        if (microbatches_ <= devices_)
          groups_[{2.0 * microbatches_, true, keep}].push_back({&block, limit, 2 * microbatches_});
      }
  }

  // The best order whose peak is at most `cap`; null where there is none. What a candidate becomes
  // does not depend on the cap: while kMaxPlayed suffices, a larger cap never gives a longer span.
  const Order* best_within(double cap) {
    cap *= 1 + kRounding;
    // The fullest first: they are the likely winners, and let the others give up early.
    const auto above = groups_.upper_bound({cap, true, 1});
    for (auto group = std::make_reverse_iterator(above); group != groups_.rend(); ++group)
      search_group(*group, cap);
    // Cutting microbatches off may lower the peak of the others.
    if (microbatches_ < full_microbatches_)
      for (auto group = above; group != groups_.end(); ++group)
        search_group(*group, cap);
    return best_.span < kUnlimited ? &best_.order : nullptr;
  }

  // A peak that can be had: that of the leanest block.
  double lowest_peak() {
    for (const auto& [key, candidates] : groups_)
      for (const Candidate& candidate : candidates)
        if (const auto order = prepare(key, candidate);
            order && play(key, *order, candidate.limit, 1, kUnlimited))
          return vee::peak_of(played_.order, keep_after_i_);
    return 2 * devices_;
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
    num_played_ += 6.0 * devices_ * full_microbatches_;
    Order order = vee::repeat(*candidate.block, full_microbatches_);
    vee::rewrite_warm_up(order, candidate.block_limit);
    if (vee::peak_of(order, key.keep_after_i) > candidate.block_limit + kRounding)
      return std::nullopt;
    if (microbatches_ < full_microbatches_) order = vee::cut(order, microbatches_);
    if (key.postponed) {
      vee::postpone_weights(order);
    } else {
      if (!player_.squeeze(order, slots_)) return std::nullopt;
      vee::rewrite_cool_down(order, slots_, candidate.limit);
    }
    return order;
  }

  bool play(const Key& key, const Order& order, int limit, double patience, double give_up) {
    return player_.play(order, {limit + kRounding, key.keep_after_i, patience, give_up}, played_);
  }

  void search_group(const Groups::value_type& group, double cap) {
    const auto& [key, candidates] = group;
    std::vector<Finalist> finalists;
    for (const Candidate& candidate : candidates) {
      if (enough(cap)) return;
      auto order = prepare(key, candidate);
      if (!order) continue;
      // At equal times every gap holds a whole pass, so that patience changes nothing.
      const double give_up = unit_ > 0                        ? best_.span
                             : finalists.size() == kShortlist ? finalists.back().span
                                                              : kUnlimited;
      if (!play(key, *order, candidate.limit, 1, give_up)) continue;
      if (unit_ == 0) add_finalist(finalists, {std::move(*order), candidate.limit, played_.span});
      keep_if_best(cap);
    }
    for (const Finalist& finalist : finalists)
      for (const double patience : kPatiences) {
        if (enough(cap)) return;
        num_played_ += 6.0 * devices_ * microbatches_;
        if (play(key, finalist.order, finalist.limit, patience, best_.span)) keep_if_best(cap);
      }
  }

  static void add_finalist(std::vector<Finalist>& finalists, Finalist finalist) {
    const auto place =
        std::upper_bound(finalists.begin(), finalists.end(), finalist,
                         [](const Finalist& a, const Finalist& b) { return a.span < b.span; });
    finalists.insert(place, std::move(finalist));
    if (finalists.size() > kShortlist) finalists.pop_back();
  }

  void keep_if_best(double cap) {
    const double peak = vee::peak_of(played_.order, keep_after_i_);
    if (peak > cap || std::pair(played_.span, peak) >= std::pair(best_.span, best_peak_)) return;
    std::swap(best_, played_);
    best_peak_ = peak;
  }

  // Whether to stop: the best is as good as this search gets, or it has run for too long.
  bool enough(double cap) const {
    if (num_played_ > (best_.span < kUnlimited ? kMaxPlayed : 2 * kMaxPlayed)) return true;
    if (unit_ == 0 || keep_after_i_ != 1 || microbatches_ < full_microbatches_) return false;
    // At equal times no block has done better than this, on any number of devices tried.
    const int p = devices_;
    const int k = static_cast<int>(std::min(cap, 2.0 * p));
    const int bubble = k == 2 * p ? 0 : k == 2 * p - 1 ? 3 : 6 * p - 1 - 3 * k;
    return best_.span <= unit_ * (6.0 * microbatches_ + bubble) * (1 + kRounding);
  }

  int devices_;
  int microbatches_;
  int full_microbatches_;  // enough for a block to reach its steady state
  double keep_after_i_;
  double unit_;  // the time of every pass where all are equal, else 0
  vee::Player player_;
  std::vector<Block> blocks_;
  Groups groups_;
  double num_played_ = 0;  // passes
  Played played_;
  Played best_;
  double best_peak_ = 0;
  std::vector<int> slots_;
};

Schedule generate_adaptive_v(const GeneratorOptions& options) {
  const int p = options.devices;
  const int m = options.microbatches;
  if (!(options.keep_after_i >= 0 && options.keep_after_i <= 1))
    throw user_error(
        "--keep-after-i is {}: needs the share of activation memory kept between I and W, from 0 "
        "to 1",
        number(options.keep_after_i));
  const double passes = 6.0 * p * std::max(m, 2 * p);
  if (passes > 2e8)
    throw user_error(
        "--devices is {}: adaptive-v lays out at least 2p microbatches, {:.3g} ops in all; at most "
        "2e+08 are supported; use fewer devices",
        p, passes);
  Search search(options);
  if (!options.memory_cap)
    throw user_error(
        "adaptive-v needs --memory-cap X: from {} to {} stage-activations for {} devices and {} "
        "microbatches",
        number(search.lowest_peak()), 2 * p, p, m);
  const Order* order = search.best_within(*options.memory_cap);
  if (!order) {
    const double enough = search.lowest_peak();
    throw CapTooLow(
        fmt::format("--memory-cap is {}: adaptive-v with {} devices and {} microbatches needs from "
                    "{} to {} stage-activations; raise the cap",
                    number(*options.memory_cap), p, m, number(enough), 2 * p),
        enough);
  }

  std::vector<PassList> devices(static_cast<std::size_t>(p));
  for (int d = 0; d < p; ++d)
    for (const vee::Letter letter : order->row(d))
      devices[static_cast<std::size_t>(d)].push_back(pass_of(letter));
  return schedule_from_passes("adaptive-v", Placement::vee(p, 2), m, 1, devices);
}

}  // namespace

extern const Generator adaptive_v;
const Generator adaptive_v = {
    .name = "adaptive-v",
    .aliases = {},
    .summary = "the best V schedule under a memory cap, searched with the real times",
    .bubble = "6p-1-3X at unit times; 3 at X = 2p-1, 0 at X = 2p",
    .memory = "at most X, from 2*floor((p+4)/3) to 2p",
    .knobs = {.default_stages_per_device = 2, .memory_cap = true, .times = true},
    .generate = generate_adaptive_v,
};

}  // namespace sluice::generators
