// Plays the orders of adaptive-v: at unit times exactly as written, or at real times while filling
// the holes with later passes.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "sluice/schedule/generators/adaptive_v_order.h"

namespace sluice::vee {

// What a pass takes on a whole microbatch: duration[6 * device + letter], and the latency between
// devices.
struct Costs {
  std::vector<double> duration;
  double comm = 0;
};

struct FillRules {
  std::span<const double> limits;  // per device: no forward moves up past this much stash
  bool strict = false;             // nor runs in its turn where there is no room
  double keep_after_i = 1;
  // A pass may fill a gap of at least 1/patience of its duration; 0: none moves up.
  double patience = 1;
  double give_up = 0;  // stop once some device's span must be longer than this
};

struct Played {
  Order order;
  double span = 0;  // of the longest device, first start to last end
};

// Earliest device first, lowest number among equals.
class WakeUps {
 public:
  explicit WakeUps(int devices);
  void reset();
  int first() const { return winner_[1]; }
  double time(int device) const { return time_[static_cast<std::size_t>(device)]; }
  void set(int device, double time);

 private:
  int devices_;
  int leaves_ = 1;
  std::vector<double> time_;
  std::vector<int> winner_;  // a heap-shaped tournament over the devices
};

// Keeps its tables from play to play. Not for use by several threads at once.
class Player {
 public:
  // `units` are good for all of num_units.
  Player(int devices, int num_units, Units units, Costs costs);

  // The slot at which each letter starts where each takes one slot and runs in the order given.
  // False where the order blocks.
  bool squeeze(const Order& order, std::vector<int>& slots);

  // Runs each device's passes in order; while the next one waits for its input, the first of F0,
  // F1, I1, I0, W1, W0 whose own input is there moves up. False where it blocks or gives up.
  bool play(const Order& order, const FillRules& rules, Played& played);

 private:
  struct Device {
    const Letter* row = nullptr;
    int head = 0;                              // the first letter not known to have run
    std::array<int, kNumLetters> before = {};  // occurrences before head
    Stash stash;
    int ran = 0;
    double first = 0;  // start of the first pass
    double clock = 0;  // end of the latest pass
    double slack = 0;  // how much more idle time give_up allows
  };

  int index(int device, Letter letter) const { return kNumLetters * device + letter; }
  void start(const Order& order);
  Letter head_letter(Device& device, const int* done) const;
  int needed(int pass) const;
  double arrival(int pass) const;
  bool fits(int device, const int* done, Letter forward, const FillRules& rules) const;
  double duration(int device, Letter letter) const;
  bool is_blocked(int device, Letter letter, const FillRules& rules) const;
  void run(int device, Letter letter, double now, Order& order);
  std::optional<Letter> filler(int device, Letter head, double now, const FillRules& rules,
                               double& next_look) const;

  int devices_;
  int num_units_;
  Units units_;
  Costs costs_;
  std::vector<int> source_;    // of each pass, the pass it waits for
  std::vector<double> delay_;  // of each pass, the latency of that input
  std::vector<double> work_;   // compute time per device
  std::vector<int> done_;      // passes started, per device and letter
  std::vector<double> end_;    // per device, letter and unit
  std::vector<Device> state_;
  WakeUps wake_ups_;
};

}  // namespace sluice::vee
