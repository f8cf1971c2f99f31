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

// One row of letters per device; the n-th occurrence of a letter in a row is microbatch n.
struct Order {
  Order(int num_devices, int num_microbatches);

  int row_length() const { return kNumLetters * microbatches; }
  std::span<Letter> row(int device) { return {letters.data() + offset(device), length()}; }
  std::span<const Letter> row(int device) const {
    return {letters.data() + offset(device), length()};
  }

  int devices;
  int microbatches;
  std::vector<Letter> letters;

 private:
  std::size_t length() const { return static_cast<std::size_t>(row_length()); }
  std::size_t offset(int device) const { return static_cast<std::size_t>(device) * length(); }
};

// Start times of microbatch 0, one row per device; microbatch j runs 6j later.
using Block = std::vector<std::array<int, kNumLetters>>;

// Every legal block with F and I1 advancing a0 slots per device on the first hops and a1 <= a0 on
// the rest. The number of hops with a0 goes up in steps of `hop_step`.
std::vector<Block> make_blocks(int devices, int hop_step);

// The stash of a device: stage-activations between F and I, and between I and W. Counted in whole
// passes, so that no rounding adds up over a long row.
struct Stash {
  void add(Letter letter) {
    if (is_forward(letter)) {
      ++before_i;
    } else if (is_weight(letter)) {
      --after_i;
    } else {
      --before_i;
      ++after_i;
    }
  }
  // The share keep_after_i of an activation stays between its I and its W.
  double size(double keep_after_i) const { return before_i + keep_after_i * after_i; }

  int before_i = 0;
  int after_i = 0;
};

// Peak stash of any device: of the block repeated for ever, and of an order.
double peak_of(const Block& block, double keep_after_i);
double peak_of(const Order& order, double keep_after_i);

Order repeat(const Block& block, int microbatches);

// Starts the pipeline as V-ZB does, as far as `limit` activations allow. Needs at least 2p
// microbatches.
void rewrite_warm_up(Order& order, int limit);

// The order without the microbatches >= `microbatches`.
Order cut(const Order& order, int microbatches);

// Moves every W behind everything else.
void postpone_weights(Order& order);

// Ends the pipeline with the last I's in an unbroken wave down and up the V and the W's around
// them. `slots` is the start of each letter at unit times, laid out as the letters.
void rewrite_cool_down(Order& order, std::span<const int> slots, int limit);

}  // namespace sluice::vee
