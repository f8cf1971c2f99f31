// The orders adaptive-v searches: V-shaped building blocks of period 6, repeated, with the warm-up
// and the cool-down rewritten. Everything here is at unit times; adaptive_v_player.h adds real
// ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::vee {

// The passes of one device, in the order in which a microbatch meets them. Device d holds stage d
// as chunk 0 and stage 2p-1-d as chunk 1; the digit is the chunk.
enum Letter : std::uint8_t { F0, F1, I1, I0, W1, W0 };
inline constexpr int kNumLetters = 6;
inline constexpr std::array<Letter, kNumLetters> kLetters = {F0, F1, I1, I0, W1, W0};

constexpr bool is_forward(Letter letter) { return letter <= F1; }
constexpr bool is_weight(Letter letter) { return letter >= W1; }

// What flows through the V: units, the slices of all microbatches. Forwards take a microbatch's
// slices first to last, backwards last to first. Where nothing is sliced, a unit is a microbatch.
class Units {
 public:
  // `slice_sizes`: of each slice of a microbatch, in any measure. Good for the first `count` units.
  Units(const std::vector<std::int64_t>& slice_sizes, int count);

  int num_slices() const { return num_slices_; }
  std::int64_t whole() const { return whole_; }  // size of a microbatch
  // Of the n-th occurrence of a letter: the size of its unit, and the share of a microbatch.
  std::int64_t size(Letter letter, int n) const { return of(letter)[at(n)]; }
  double share(Letter letter, int n) const {
    return static_cast<double>(size(letter, n)) * share_of_one_;
  }
  // The forward, counted from 0, that the n-th backward waits for where the V turns.
  int turned(int n) const { return turned_[at(n)]; }

 private:
  static std::size_t at(int n) { return static_cast<std::size_t>(n); }
  const std::vector<std::int64_t>& of(Letter letter) const {
    return is_forward(letter) ? forward_ : backward_;
  }

  int num_slices_;
  std::int64_t whole_ = 0;
  double share_of_one_;
  std::vector<std::int64_t> forward_;
  std::vector<std::int64_t> backward_;
  std::vector<int> turned_;
};

// One row of letters per device; the n-th occurrence of a letter in a row is unit n.
struct Order {
  Order(int num_devices, int num_units);

  int row_length() const { return kNumLetters * units; }
  std::span<Letter> row(int device) { return {letters.data() + offset(device), length()}; }
  std::span<const Letter> row(int device) const {
    return {letters.data() + offset(device), length()};
  }

  int devices;
  int units;
  std::vector<Letter> letters;

 private:
  std::size_t length() const { return static_cast<std::size_t>(row_length()); }
  std::size_t offset(int device) const { return static_cast<std::size_t>(device) * length(); }
};

// Start times of unit 0, one row per device; unit j runs 6j later. Backwards of units that are
// slices come as many periods later as a microbatch has slices beyond the first (`delay`), because
// its last slice goes back first.
using Block = std::vector<std::array<int, kNumLetters>>;

// Every legal block with F and I1 advancing a0 slots per device on the first hops and a1 <= a0 on
// the rest. The number of hops with a0 goes up in steps of `hop_step`.
std::vector<Block> make_blocks(int devices, int hop_step);

// The stash of a device: what it holds between F and I, and between I and W. Counted in whole
// sizes, so that no rounding adds up over a long row.
struct Stash {
  void add(Letter letter, std::int64_t size) {
    if (is_forward(letter)) {
      before_i += size;
    } else if (is_weight(letter)) {
      after_i -= size;
    } else {
      before_i -= size;
      after_i += size;
    }
  }
  // The share keep_after_i of an activation stays between its I and its W.
  double size(double keep_after_i) const {
    return static_cast<double>(before_i) + keep_after_i * static_cast<double>(after_i);
  }

  std::int64_t before_i = 0;
  std::int64_t after_i = 0;
};

// Peak stash: of any device of the block repeated for ever, in units; of each device of an order,
// in sizes of units.
double peak_of(const Block& block, int delay, double keep_after_i);
std::vector<double> peaks_of(const Order& order, const Units& units, double keep_after_i);

// Whether no device holds more units than the limit.
bool is_within(const Order& order, int limit, double keep_after_i);

Order repeat(const Block& block, int delay, int units);

// Starts the pipeline as V-ZB does, as far as `limit` activations allow. Needs at least 2p units
// more than the delay.
void rewrite_warm_up(Order& order, int delay, int limit);

// The order without the units >= `units`.
Order cut(const Order& order, int units);

// The order of microbatches as one of their slices: each pass is run slice by slice.
Order sliced(const Order& order, int num_slices);

// Moves every W behind everything else.
void postpone_weights(Order& order);

// Ends the pipeline with the last I's in an unbroken wave down and up the V and the W's around
// them. `slots` is the start of each letter at unit times, laid out as the letters.
void rewrite_cool_down(Order& order, int delay, std::span<const int> slots, int limit);

}  // namespace sluice::vee
