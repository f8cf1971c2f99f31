#include "schedule/generators/adaptive_v_order.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace sluice::vee {

namespace {

constexpr int kPeriod = kNumLetters;  // a device runs each letter once per microbatch

using Counts = std::array<int, kNumLetters>;

int residue(int slot) { return (slot % kPeriod + kPeriod) % kPeriod; }

// The first slot after `slot` with the given residue.
int next_slot(int slot, int wanted) { return slot + 1 + residue(wanted - slot - 1); }

// How many microbatches have started a pass by `slot`, where microbatch 0 does so at `start`; may
// be negative, since microbatches go back for ever.
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

Order::Order(int num_devices, int num_microbatches)
    : devices(num_devices), microbatches(num_microbatches) {
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

double peak_of(const Block& block, double keep_after_i) {
  double peak = 0;
  for (const auto& start : block)
    for (const Letter forward : {F0, F1}) {
      const int now = start[forward];
      const auto held = [&](Letter f, Letter i, Letter w) {
        const int after_f = started_by(now, start[f]);
        const int after_i = started_by(now - 1, start[i]);
        const int after_w = started_by(now - 1, start[w]);
        return Stash{after_f - after_i, after_i - after_w}.size(keep_after_i);
      };
      peak = std::max(peak, held(F0, I0, W0) + held(F1, I1, W1));
    }
  return peak;
}

double peak_of(const Order& order, double keep_after_i) {
  double peak = 0;
  for (int d = 0; d < order.devices; ++d) {
    Stash stash;
    for (const Letter letter : order.row(d)) {
      stash.add(letter);
      if (is_forward(letter)) peak = std::max(peak, stash.size(keep_after_i));
    }
  }
  return peak;
}

Order repeat(const Block& block, int microbatches) {
  Order order(static_cast<int>(block.size()), microbatches);
  for (int d = 0; d < order.devices; ++d) {
    const auto& start = block[static_cast<std::size_t>(d)];
    std::array<Letter, kPeriod> by_residue = {};
    Counts lag = {};  // periods after F0
    for (const Letter letter : kLetters) {
      const int after = start[letter] - start[F0];
      by_residue[static_cast<std::size_t>(after % kPeriod)] = letter;
      lag[letter] = after / kPeriod;
    }
    auto out = order.row(d).begin();
    for (int period = 0; out != order.row(d).end(); ++period)
      for (const Letter letter : by_residue) {
        const int microbatch = period - lag[letter];
        if (microbatch >= 0 && microbatch < microbatches) *out++ = letter;
      }
  }
  return order;
}

void rewrite_warm_up(Order& order, int limit) {
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
    int room_f1 = std::min(d + 1, limit / 2);
    int room_f0 = limit - room_f1;
    const auto put_f0 = [&] {
      if (room_f0 > 0 && put(F0)) --room_f0;
    };
    const auto put_f1 = [&] {
      if (room_f1 > 0 && put(F1)) --room_f1;
    };
    for (int n = 0; n < 2 * (order.devices - 1 - d); ++n)
      put_f0();
    for (int n = 0; n <= d; ++n) {
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

Order cut(const Order& order, int microbatches) {
  Order shorter(order.devices, microbatches);
  for (int d = 0; d < order.devices; ++d) {
    Counts seen = {};
    auto out = shorter.row(d).begin();
    for (const Letter letter : order.row(d))
      if (seen[letter]++ < microbatches) *out++ = letter;
  }
  return shorter;
}

void postpone_weights(Order& order) {
  for (int d = 0; d < order.devices; ++d)
    std::stable_partition(order.row(d).begin(), order.row(d).end(),
                          [](Letter letter) { return !is_weight(letter); });
}

void rewrite_cool_down(Order& order, std::span<const int> slots, int limit) {
  struct Placed {
    int slot;
    Letter letter;
  };
  const auto earlier = [](const Placed& a, const Placed& b) { return a.slot < b.slot; };
  const auto length = static_cast<std::size_t>(order.row_length());
  const int devices = order.devices;
  const int num_i0 = std::min((limit + 1) / 2, order.microbatches);
  const int num_i1 = std::min(limit - num_i0, order.microbatches);

  const auto row0 = order.row(0);
  const auto last_f1 = std::find(row0.rbegin(), row0.rend(), F1);
  const int turn = slots[static_cast<std::size_t>(row0.rend() - last_f1) - 1];

  std::vector<Placed> kept, wave, merged;
  for (int d = 0; d < devices; ++d) {
    const auto row = order.row(d);
    const int wanted_i1 = std::min(d + 1, num_i1);
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
