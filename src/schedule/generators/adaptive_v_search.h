// The search of adaptive-v: every building block of period 6 is repeated, its warm-up and cool-down
// are rewritten, its holes filled; the shortest span wins.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "sluice/schedule/generators/adaptive_v_order.h"
#include "sluice/schedule/generators/adaptive_v_player.h"
#include "sluice/schedule/generators/generator.h"

namespace sluice::vee {

// Keeps tables as large as an order. Not for use by several threads at once.
class Search {
 public:
  explicit Search(const GeneratorOptions& options);

  // The best order within the cap; null where there is none. Where slices are equal and one cap is
  // for all devices, what a candidate becomes does not depend on it: while the bounds of the search
  // suffice, a larger cap never gives a longer span. Caps that differ give none longer than the
  // least of them for all.
  const Order* best();

  // The order of whole microbatches, run slice by slice, as one more candidate. It fits where that
  // order does, and ends no later.
  void consider_sliced(const Order& whole);

  // The peaks by device of the order that exceeds the cap by least, where devices do not wait for
  // room; `excess` is that of the device with the largest.
  struct Nearest {
    double excess = 0;
    std::vector<double> peaks;
    friend bool operator<(const Nearest& a, const Nearest& b) { return a.excess < b.excess; }
  };
  Nearest nearest();

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

  std::optional<Order> prepare(const Key& key, const Candidate& candidate);
  bool play(const Key& key, const Order& order, int limit, double patience, double give_up);
  template <typename Visit>
  void play_all(Visit visit);
  void search_up_to(double cap);
  void search_group(const Groups::value_type& group);
  static void add_finalist(std::vector<Finalist>& finalists, Finalist finalist);
  void keep_if_best();
  bool enough() const;
  bool equal_units() const;
  bool peaks_known() const;
  std::vector<double> peaks_played() const;
  double sized_cap(int device) const;

  int devices_;
  int num_units_;   // slices of all microbatches
  int delay_;       // periods by which slices delay the backwards of a block
  int full_units_;  // enough for a block to reach its steady state
  int most_units_;  // more than these on a device are of no use
  MemoryCap cap_;
  bool strict_ = false;  // whether orders are played under each device's cap
  double keep_after_i_;
  Units units_;
  double unit_;  // the time of every pass where all are equal, else 0
  Player player_;
  std::vector<Block> blocks_;
  Groups groups_;          // by memory in units
  double num_played_ = 0;  // passes
  Played played_;
  Played best_;
  double best_peak_ = 0;
  std::vector<int> slots_;
  std::vector<double> fill_limits_;  // of each device, in sizes of units
};

}  // namespace sluice::vee
