#include "sluice/schedule/generators/adaptive_v_order.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace sluice::vee {

namespace {

constexpr double kRounding = 1e-9;
constexpr int kPeriod = kNumLetters;  // a device runs each letter once per microbatch

using Counts = std::array<int, kNumLetters>;

int residue(int slot) { return (slot % kPeriod + kPeriod) % kPeriod; }

// The first slot after `slot` with the given residue.
int next_slot(int slot, int wanted) { return slot + 1 + residue(wanted - slot - 1); }

// How many units have started a pass by `slot`, where unit 0 does so at `start`; may be negative,
// since units go back for ever.
int started_by(int slot, int start) { return (slot - start - residue(slot - start)) / kPeriod + 1; }

// The residues on device 0 (F0 has 0) and how far F0 and I1 advance per hop.
struct Pattern {
  int f1, i1, i0;
  int a0, a1;
  int hops_with_a0;
};

// Nothing where two passes of a device collide.
std::optional<Block> make_block(int devices, const Pattern& pattern) {
  Block residues(static_cast<std::size_t>(devices));
  int shift = 0;
  for (int d = 0; d < devices; ++d) {
    if (d > 0) shift += d <= pattern.hops_with_a0 ? pattern.a0 : pattern.a1;
    auto& at = residues[static_cast<std::size_t>(d)];
    at = {residue(shift), residue(pattern.f1 - d), residue(pattern.i1 + shift),
          residue(pattern.i0 - d)};
    std::array<bool, kPeriod> used = {};
    const auto take = [&](int slot) {
      return std::exchange(used[static_cast<std::size_t>(slot)], true);
    };
    for (const Letter letter : {F0, F1, I1, I0})
      if (take(at[letter])) return std::nullopt;
    // W0 chooses before W1: at p = 7 and 7 activations the other way round costs a slot.
    for (const auto& [weight, input] : {std::pair{W0, I0}, std::pair{W1, I1}}) {
      at[weight] = at[input];
      while (take(at[weight]))
        at[weight] = residue(at[weight] + 1);
    }
  }

  Block block(residues.size());
  int slot = -1;
  const auto down = [&](Letter letter) {
    for (std::size_t d = 0; d < block.size(); ++d)
      slot = block[d][letter] = next_slot(slot, residues[d][letter]);
  };
  const auto up = [&](Letter letter) {
    for (std::size_t d = block.size(); d-- > 0;)
      slot = block[d][letter] = next_slot(slot, residues[d][letter]);
  };
  down(F0);
  up(F1);
  down(I1);
  up(I0);
  for (std::size_t d = 0; d < block.size(); ++d) {
    block[d][W1] = next_slot(block[d][I1], residues[d][W1]);
    block[d][W0] = next_slot(block[d][I0], residues[d][W0]);
  }
  return block;
}

}  // namespace

Units::Units(const std::vector<std::int64_t>& slice_sizes, int count)
    : num_slices_(static_cast<int>(slice_sizes.size())) {
  for (const std::int64_t size : slice_sizes)
    whole_ += size;
  share_of_one_ = 1.0 / static_cast<double>(whole_);
  for (int n = 0; n <= count; ++n) {
    const int slice = n % num_slices_, mirrored = num_slices_ - 1 - slice;
    forward_.push_back(slice_sizes[at(slice)]);
    backward_.push_back(slice_sizes[at(mirrored)]);
    turned_.push_back(n - slice + mirrored);
  }
}

Order::Order(int num_devices, int num_units) : devices(num_devices), units(num_units) {
  letters.resize(static_cast<std::size_t>(devices) * length());
}

std::vector<Block> make_blocks(int devices, int hop_step) {
  std::vector<Block> blocks;
  const auto add = [&](const Pattern& pattern) {
    if (auto block = make_block(devices, pattern)) blocks.push_back(std::move(*block));
  };
  for (int f1 = 1; f1 < kPeriod; ++f1)
    for (int i1 = 1; i1 < kPeriod; ++i1)
      for (int i0 = 1; i0 < kPeriod; ++i0) {
        if (f1 == i1 || f1 == i0 || i1 == i0) continue;
        const int most = devices == 1 ? 1 : kPeriod - 1;  // no hop, no choice
        for (int a0 = 1; a0 <= most; ++a0) {
          add({f1, i1, i0, a0, a0, devices - 1});
          for (int a1 = 1; a1 < a0; ++a1)
            for (int hops = 1; hops < devices - 1; hops += hop_step)
              add({f1, i1, i0, a0, a1, hops});
        }
      }
  return blocks;
}

double peak_of(const Block& block, int delay, double keep_after_i) {
  double peak = 0;
  for (const auto& start : block)
    for (const Letter forward : {F0, F1}) {
      const int now = start[forward];
      const auto held = [&](Letter f, Letter i, Letter w) {
        const int after_f = started_by(now, start[f]);
        const int after_i = started_by(now - 1, start[i]) - delay;
        const int after_w = started_by(now - 1, start[w]) - delay;
        return Stash{after_f - after_i, after_i - after_w}.size(keep_after_i);
      };
      peak = std::max(peak, held(F0, I0, W0) + held(F1, I1, W1));
    }
  return peak;
}

std::vector<double> peaks_of(const Order& order, const Units& units, double keep_after_i) {
  std::vector<double> peaks;
  for (int d = 0; d < order.devices; ++d) {
    Stash stash;
    Counts done = {};
    double peak = 0;
    for (const Letter letter : order.row(d)) {
      stash.add(letter, units.size(letter, done[letter]++));
      if (is_forward(letter)) peak = std::max(peak, stash.size(keep_after_i));
    }
    peaks.push_back(peak);
  }
  return peaks;
}

bool is_within(const Order& order, int limit, double keep_after_i) {
  for (int d = 0; d < order.devices; ++d) {
    Stash stash;
    for (const Letter letter : order.row(d)) {
      stash.add(letter, 1);
      if (is_forward(letter) && stash.size(keep_after_i) > limit + kRounding) return false;
    }
  }
  return true;
}

Order repeat(const Block& block, int delay, int units) {
  Order order(static_cast<int>(block.size()), units);
  for (int d = 0; d < order.devices; ++d) {
    const auto& start = block[static_cast<std::size_t>(d)];
    std::array<Letter, kPeriod> by_residue = {};
    Counts lag = {};  // periods after F0
    for (const Letter letter : kLetters) {
      const int after = start[letter] - start[F0];
      by_residue[static_cast<std::size_t>(after % kPeriod)] = letter;
      lag[letter] = after / kPeriod + (is_forward(letter) ? 0 : delay);
    }
    auto out = order.row(d).begin();
    for (int period = 0; out != order.row(d).end(); ++period)
      for (const Letter letter : by_residue) {
        const int unit = period - lag[letter];
        if (unit >= 0 && unit < units) *out++ = letter;
      }
  }
  return order;
}

void rewrite_warm_up(Order& order, int delay, int limit) {
  for (int d = 0; d < order.devices; ++d) {
    const auto row = order.row(d);
    const auto end = std::find(row.begin(), row.end(), I0);
    Counts left = {};
    for (auto it = row.begin(); it != end; ++it)
      ++left[*it];

    auto out = row.begin();
    const auto put = [&](Letter letter) {
      if (left[letter] == 0) return false;
      --left[letter];
      *out++ = letter;
      return true;
    };
    int room_f1 = std::min(d + 1 + delay, limit / 2);
    int room_f0 = limit - room_f1;
    const auto put_f0 = [&] {
      if (room_f0 > 0 && put(F0)) --room_f0;
    };
    const auto put_f1 = [&] {
      if (room_f1 > 0 && put(F1)) --room_f1;
    };
    for (int n = 0; n < 2 * (order.devices - 1 - d); ++n)
      put_f0();
    for (int n = 0; n <= d + delay; ++n) {
      put_f0();
      put_f1();
    }
    while (out != end) {
      put(I1);
      put(W1);
      if (!put(F1)) put(F0);
    }
  }
}

Order cut(const Order& order, int units) {
  Order shorter(order.devices, units);
  for (int d = 0; d < order.devices; ++d) {
    Counts seen = {};
    auto out = shorter.row(d).begin();
    for (const Letter letter : order.row(d))
      if (seen[letter]++ < units) *out++ = letter;
  }
  return shorter;
}

Order sliced(const Order& order, int num_slices) {
  Order finer(order.devices, order.units * num_slices);
  auto out = finer.letters.begin();
  for (const Letter letter : order.letters)
    out = std::fill_n(out, num_slices, letter);
  return finer;
}

void postpone_weights(Order& order) {
  for (int d = 0; d < order.devices; ++d)
    std::stable_partition(order.row(d).begin(), order.row(d).end(),
                          [](Letter letter) { return !is_weight(letter); });
}

void rewrite_cool_down(Order& order, int delay, std::span<const int> slots, int limit) {
  struct Placed {
    int slot;
    Letter letter;
  };
  const auto earlier = [](const Placed& a, const Placed& b) { return a.slot < b.slot; };
  const auto length = static_cast<std::size_t>(order.row_length());
  const int devices = order.devices;
  const int num_i0 = std::min((limit + 1) / 2, order.units);

  const auto row0 = order.row(0);
  const auto last_f1 = std::find(row0.rbegin(), row0.rend(), F1);
  // Where the last unit turns; it is the first slice of its microbatch, and the others go first.
  const int turn = slots[static_cast<std::size_t>(row0.rend() - last_f1) - 1] + 2 * delay;

  std::vector<Placed> kept, wave, merged;
  for (int d = 0; d < devices; ++d) {
    const auto row = order.row(d);
    const int wanted_i1 = std::min({d + 1 + delay, limit - num_i0, order.units});
    kept.clear();
    Counts taken = {};
    int last_weight_slot = -1;
    for (std::size_t n = length; n-- > 0;) {
      const Letter letter = row[n];
      const int slot = slots[static_cast<std::size_t>(d) * length + n];
      const bool take =
          (letter == I0 && taken[I0] < num_i0) || (letter == I1 && taken[I1] < wanted_i1) ||
          (is_weight(letter) &&
           (taken[W1] < wanted_i1 || taken[W0] < num_i0 || taken[W1] + taken[W0] < limit));
      if (take) {
        ++taken[letter];
      } else {
        if (is_weight(letter)) last_weight_slot = std::max(last_weight_slot, slot);
        kept.push_back({slot, letter});
      }
    }
    std::reverse(kept.begin(), kept.end());
    wave.clear();
    for (int n = 0; n < taken[I0]; ++n)
      wave.push_back({turn - d + 2 * devices - 2 * n, I0});
    for (int n = 0; n < taken[I1]; ++n)
      wave.push_back({turn + 1 + d - 2 * n, I1});
    std::sort(wave.begin(), wave.end(), earlier);
    merged.resize(kept.size() + wave.size());
    std::merge(kept.begin(), kept.end(), wave.begin(), wave.end(), merged.begin(), earlier);

    auto out = row.begin();
    Counts done = {};
    const auto put = [&](Letter letter) {
      ++done[letter];
      *out++ = letter;
    };
    const auto put_weight = [&](Letter weight, Letter input) {
      if (taken[weight] == 0 || done[input] <= done[weight]) return false;
      --taken[weight];
      put(weight);
      return true;
    };
    int next_free = last_weight_slot + 1;
    for (const auto& [slot, letter] : merged) {
      for (; next_free < slot; ++next_free)
        if (!put_weight(W1, I1) && !put_weight(W0, I0)) break;
      put(letter);
      next_free = std::max(next_free, slot + 1);
    }
    out = std::fill_n(out, taken[W1], W1);
    std::fill_n(out, taken[W0], W0);
  }
}

}  // namespace sluice::vee
