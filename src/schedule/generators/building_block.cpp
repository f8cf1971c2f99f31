#include "sluice/schedule/generators/building_block.h"

#include <algorithm>

#include "sluice/base/error.h"

namespace sluice {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// What a device does in a slot: a forward or backward (its node number), or one of these.
constexpr int kFree = -1;
constexpr int kWeight = -2;  // a W; which one is settled when the order is written out
constexpr int kTail = -3;    // second half of a fused B

// Devices x slots is memory; devices again is about the time of reordering, here half a minute.
constexpr double kMaxCells = 1e8;
constexpr double kMaxMoves = 5e9;

int last_start(const BuildingBlock& block) {
  int last = 0;
  for (const std::vector<int>* starts : {&block.forward, &block.backward, &block.weight})
    for (const int start : *starts)
      last = std::max(last, start);
  return last;
}

// The block with every backward `periods` later. Its slots modulo the period are the same, so that
// it is as legal.
BuildingBlock delayed(BuildingBlock block, int periods) {
  for (std::vector<int>* starts : {&block.backward, &block.weight})
    for (int& start : *starts)
      start += periods * block.period;
  return block;
}

// The repeated block on slotted time, and the moves that the construction makes on it.
class Grid {
 public:
  Grid(const BuildingBlock& block, int num_microbatches, int num_slices);

  int num_slots() const { return static_cast<int>(cells_[0].size()); }

  // Runs pending W in free slots as early as possible; those left over go to the end.
  void fill_weights();
  void drop_weights();
  void squeeze();

  // The passes before the first microbatch is all the way back; those after the last one entered.
  enum class Part { warm_up, cool_down, all };
  // Visits the passes in order of time and moves each pass of the part to its first legal hole
  // before its place, as long as its device stays within `limit` stage-activations. Where W are
  // implicit, every slot without a pass runs a pending one.
  void reorder(Part part, bool implicit_weights, int limit);

  // The most stage-activations that any device holds at once.
  int peak() const;

  // The order, each free slot filled with a pending W, of the device's last chunk first.
  std::vector<PassList> passes() const;

 private:
  // Stage-activations held and W pending before a slot.
  struct Memory {
    int live = 0;
    int pending = 0;
    friend bool operator==(const Memory&, const Memory&) = default;
  };

  int node(bool backward, int stage, int unit) const {
    return ((backward ? num_stages_ : 0) + stage) * num_units_ + unit;
  }
  bool is_backward(int node) const { return node >= num_stages_ * num_units_; }
  int stage(int node) const { return node / num_units_ % num_stages_; }
  // Backwards take the slices of a microbatch last to first.
  int slice(int unit, bool backward) const {
    return backward ? num_slices_ - 1 - unit % num_slices_ : unit % num_slices_;
  }
  int duration(int node) const { return fused_ && node >= 0 && is_backward(node) ? 2 : 1; }
  int device(int node) const { return placement_.device_of(0, stage(node)); }

  void grow(int num_slots);
  void place(int node, int slot);
  void put(int device, int slot, int cell);
  void clear(int device, int slot);
  int first_slot(int node) const;
  bool fits(int device, int slot, int cell, int old_slot) const;
  int advance(int cell, bool implicit_weights, Memory& memory) const;
  bool within_limit(int device, int from, int to, bool implicit_weights, int limit) const;
  void remember(int device, int from, int to, bool implicit_weights);

  const Placement& placement_;
  const int num_stages_;
  const int num_slices_;
  const int num_units_;  // slices of all microbatches
  const bool fused_;
  std::vector<std::vector<int>> cells_;      // [device][slot]
  std::vector<int> start_;                   // slot of each node
  std::vector<std::vector<Memory>> memory_;  // [device][slot], kept up to date by reorder
};

Grid::Grid(const BuildingBlock& block, int num_microbatches, int num_slices)
    : placement_(block.placement),
      num_stages_(block.placement.num_stages()),
      num_slices_(num_slices),
      num_units_(num_microbatches * num_slices),
      fused_(block.fused),
      cells_(at(block.placement.num_devices())),
      start_(at(2 * num_stages_ * num_units_)) {
  grow((num_units_ - 1) * block.period + last_start(block) + 2);
  for (int s = 0; s < num_stages_; ++s)
    for (int j = 0; j < num_units_; ++j) {
      place(node(false, s, j), block.forward[at(s)] + j * block.period);
      place(node(true, s, j), block.backward[at(s)] + j * block.period);
      if (!block.weight.empty())
        put(placement_.device_of(0, s), block.weight[at(s)] + j * block.period, kWeight);
    }
}

void Grid::grow(int num_slots) {
  for (std::vector<int>& row : cells_)
    row.resize(at(num_slots), kFree);
}

void Grid::put(int device, int slot, int cell) {
  std::vector<int>& row = cells_[at(device)];
  SLUICE_CHECK(row[at(slot)] == kFree, "device {} slot {} holds {}", device, slot, row[at(slot)]);
  row[at(slot)] = cell;
  if (duration(cell) == 2) row[at(slot + 1)] = kTail;
  if (cell >= 0) start_[at(cell)] = slot;
}

void Grid::place(int node, int slot) { put(device(node), slot, node); }

void Grid::clear(int device, int slot) {
  std::vector<int>& row = cells_[at(device)];
  if (duration(row[at(slot)]) == 2) row[at(slot + 1)] = kFree;
  row[at(slot)] = kFree;
}

void Grid::fill_weights() {
  int most_left = 0;
  std::vector<int> left(cells_.size(), 0);
  for (std::size_t d = 0; d < cells_.size(); ++d) {
    int& pending = left[d];
    for (int& cell : cells_[d]) {
      if (cell >= 0 && is_backward(cell)) {
        ++pending;
      } else if (cell == kFree && pending > 0) {
        cell = kWeight;
        --pending;
      }
    }
    most_left = std::max(most_left, pending);
  }
  const int end = num_slots();
  grow(end + most_left);
  for (std::size_t d = 0; d < cells_.size(); ++d)
    std::fill_n(cells_[d].begin() + end, left[d], kWeight);
}

void Grid::drop_weights() {
  for (std::vector<int>& row : cells_)
    std::replace(row.begin(), row.end(), kWeight, kFree);
}

// The first slot by which every input of the pass, and the same pass of the unit before it, have
// ended.
int Grid::first_slot(int n) const {
  const bool backward = is_backward(n);
  const int unit = n % num_units_;
  const Op op = make_op(backward ? OpKind::I : OpKind::F, stage(n), unit / num_slices_,
                        slice(unit, backward));
  int slot = 0;
  const auto after = [&](int before) {
    slot = std::max(slot, start_[at(before)] + duration(before));
  };
  for (const Op& input : inputs_of(op, num_stages_, num_slices_)) {
    const bool of_backward = input.kind == OpKind::I;
    after(node(of_backward, input.stage,
               input.microbatch * num_slices_ + slice(input.slice, of_backward)));
  }
  if (unit > 0) after(n - 1);
  return slot;
}

// Slot order respects every input, so one sweep over time sees each input before its use.
void Grid::squeeze() {
  std::vector<std::vector<int>> old(cells_.size());
  old.swap(cells_);
  grow(static_cast<int>(old[0].size()));
  std::vector<int> free_from(cells_.size(), 0);
  for (std::size_t slot = 0; slot < old[0].size(); ++slot)
    for (std::size_t d = 0; d < cells_.size(); ++d) {
      const int cell = old[d][slot];
      if (cell == kFree || cell == kTail) continue;
      const int start = std::max(free_from[d], cell >= 0 ? first_slot(cell) : 0);
      put(static_cast<int>(d), start, cell);
      free_from[d] = start + duration(cell);
    }
  grow(*std::max_element(free_from.begin(), free_from.end()));
}

// Runs one slot and says how many activations live during it.
int Grid::advance(int cell, bool implicit_weights, Memory& memory) const {
  if (cell >= 0 && !is_backward(cell)) return ++memory.live;
  const int during = memory.live;
  if (cell >= 0) {
    ++memory.pending;
  } else if (cell != kFree || (implicit_weights && memory.pending > 0)) {
    --memory.live;
    --memory.pending;
  }
  return during;
}

int Grid::peak() const {
  int peak = 0;
  for (const std::vector<int>& row : cells_) {
    Memory memory;
    for (const int cell : row)
      peak = std::max(peak, advance(cell, false, memory));
  }
  return peak;
}

// Whether the device stays within the limit after a change to slots [from, to). Only slots up to
// where the memory is again what it was before the change have to be looked at.
bool Grid::within_limit(int device, int from, int to, bool implicit_weights, int limit) const {
  const std::vector<int>& row = cells_[at(device)];
  const std::vector<Memory>& known = memory_[at(device)];
  Memory memory = known[at(from)];
  for (int slot = from; slot < num_slots(); ++slot) {
    if (slot >= to && memory == known[at(slot)]) return true;
    if (advance(row[at(slot)], implicit_weights, memory) > limit) return false;
  }
  return true;
}

void Grid::remember(int device, int from, int to, bool implicit_weights) {
  const std::vector<int>& row = cells_[at(device)];
  std::vector<Memory>& known = memory_[at(device)];
  Memory memory = known[at(from)];
  for (int slot = from; slot < num_slots(); ++slot) {
    if (slot >= to && memory == known[at(slot)]) return;
    known[at(slot)] = memory;
    advance(row[at(slot)], implicit_weights, memory);
  }
}

bool Grid::fits(int device, int slot, int cell, int old_slot) const {
  const std::vector<int>& row = cells_[at(device)];
  for (int s = slot; s < slot + duration(cell) && s < old_slot; ++s)
    if (row[at(s)] != kFree) return false;
  return true;
}

void Grid::reorder(Part part, bool implicit_weights, int limit) {
  const std::size_t num_devices = cells_.size();
  memory_.assign(num_devices, std::vector<Memory>(at(num_slots()), Memory{-1, -1}));
  std::vector<std::vector<int>> backwards(num_devices);  // their slots, ascending
  for (std::size_t d = 0; d < num_devices; ++d) {
    memory_[d][0] = Memory{};
    remember(static_cast<int>(d), 0, num_slots(), implicit_weights);
    for (int slot = 0; slot < num_slots(); ++slot)
      if (const int cell = cells_[d][at(slot)]; cell >= 0 && is_backward(cell))
        backwards[d].push_back(slot);
  }

  std::vector<std::size_t> num_weights(num_devices, 0);  // W seen
  bool may_move = part != Part::cool_down;
  for (int slot = 0; slot < num_slots(); ++slot)
    for (int d = 0; d < static_cast<int>(num_devices); ++d) {
      const int cell = cells_[at(d)][at(slot)];
      if (cell == kFree || cell == kTail) continue;
      if (part == Part::warm_up && cell == node(true, 0, 0)) return;
      // The k-th W of a device may follow its k-th backward, whichever that is.
      const std::size_t nth = num_weights[at(d)];
      if (cell == kWeight) ++num_weights[at(d)];
      if (!may_move) {
        may_move = cell == node(false, 0, num_units_ - 1);
        continue;
      }

      const int from = cell == kWeight ? backwards[at(d)][nth] + 1 : first_slot(cell);
      const int end = slot + duration(cell);
      for (int hole = from; hole < slot; ++hole) {
        if (!fits(d, hole, cell, slot)) continue;
        clear(d, slot);
        put(d, hole, cell);
        if (!within_limit(d, hole, end, implicit_weights, limit)) {
          clear(d, hole);
          put(d, slot, cell);
          continue;
        }
        remember(d, hole, end, implicit_weights);
        if (cell >= 0 && is_backward(cell)) {
          std::vector<int>& slots = backwards[at(d)];
          const auto old = std::lower_bound(slots.begin(), slots.end(), slot);
          *old = hole;
          std::rotate(std::lower_bound(slots.begin(), old, hole), old, old + 1);
        }
        break;
      }
    }
}

std::vector<PassList> Grid::passes() const {
  std::vector<PassList> lists(cells_.size());
  for (std::size_t d = 0; d < cells_.size(); ++d) {
    const std::vector<int>& stages = placement_.stages_of(static_cast<int>(d));
    std::vector<int> pending(stages.size(), 0);
    const auto run_weight = [&] {
      for (std::size_t c = stages.size(); c-- > 0;)
        if (pending[c] > 0) {
          --pending[c];
          lists[d].push_back({OpKind::W, static_cast<int>(c)});
          return true;
        }
      return false;
    };
    for (const int cell : cells_[d]) {
      if (cell < 0) {
        if (cell == kFree) run_weight();
        continue;
      }
      const auto c = static_cast<std::size_t>(
          std::lower_bound(stages.begin(), stages.end(), stage(cell)) - stages.begin());
      const OpKind kind = !is_backward(cell) ? OpKind::F : fused_ ? OpKind::B : OpKind::I;
      if (kind == OpKind::I) ++pending[c];
      lists[d].push_back({kind, static_cast<int>(c)});
    }
    while (run_weight()) {
    }
  }
  return lists;
}

}  // namespace

std::string block_problem(const BuildingBlock& block) {
  const Placement& placement = block.placement;
  const int num_stages = placement.num_stages();
  const auto start = [&](const Op& op) {
    const auto& starts = op.kind == OpKind::F   ? block.forward
                         : op.kind == OpKind::W ? block.weight
                                                : block.backward;
    return starts[at(op.stage)];
  };
  const auto duration = [&](const Op& op) { return block.fused && op.kind != OpKind::F ? 2 : 1; };
  const auto name = [&](const Op& op) {
    const std::vector<int>& stages = placement.stages_of(placement.device_of(0, op.stage));
    const auto chunk = std::lower_bound(stages.begin(), stages.end(), op.stage) - stages.begin();
    const OpKind kind = block.fused && op.kind == OpKind::I ? OpKind::B : op.kind;
    return fmt::format("{} of chunk {} (slot {})", kind_name(kind), chunk, start(op));
  };

  std::vector<OpKind> kinds = {OpKind::F, OpKind::I};
  if (!block.weight.empty()) kinds.push_back(OpKind::W);
  for (int d = 0; d < placement.num_devices(); ++d) {
    const std::vector<int>& stages = placement.stages_of(d);
    const auto work = 3 * static_cast<int>(stages.size());
    if (block.period < work)
      return fmt::format("period is {}: device {} works {} slots on a microbatch; use {} or more",
                         block.period, d, work, work);
    std::vector<std::pair<int, Op>> taken;  // slot modulo the period
    for (const int s : stages)
      for (const OpKind kind : kinds) {
        Op op;
        op.stage = s;
        op.kind = kind;
        for (int slot = start(op); slot < start(op) + duration(op); ++slot)
          taken.emplace_back(slot % block.period, op);
        for (const Op& input : inputs_of(op, num_stages, 1))
          if (const int end = start(input) + duration(input); start(op) < end)
            return fmt::format(
                "device {}: {} comes before its input, {} of device {}, ends; start "
                "it at {} or later",
                d, name(op), name(input), placement.device_of(0, input.stage), end);
      }
    std::stable_sort(taken.begin(), taken.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t n = 1; n < taken.size(); ++n)
      if (taken[n - 1].first == taken[n].first)
        return fmt::format(
            "device {}: {} and {} collide, both in slot {} of the period {}; move "
            "one of them",
            d, name(taken[n - 1].second), name(taken[n].second), taken[n].first, block.period);
  }
  return "";
}

std::vector<PassList> order_from_block(const BuildingBlock& whole, int num_microbatches,
                                       int num_slices) {
  const BuildingBlock block = delayed(whole, num_slices - 1);
  const int num_devices = block.placement.num_devices();
  const double num_cells =
      (1.0 * block.period * num_microbatches * num_slices + last_start(block)) * num_devices;
  const double num_moves = num_cells * num_devices;
  if (num_cells > kMaxCells || num_moves > kMaxMoves)
    throw user_error(
        "{} devices x {} microbatches x {} slices take {:.3g} slots to lay out and about {:.3g} "
        "moves to reorder: at most {:.3g} and {:.3g}; use fewer devices or microbatches, or zb-v",
        num_devices, num_microbatches, num_slices, num_cells, num_moves, kMaxCells, kMaxMoves);
  Grid grid(block, num_microbatches, num_slices);
  if (block.fused) {
    grid.squeeze();
    grid.reorder(Grid::Part::all, false, grid.peak());
    return grid.passes();
  }
  // Between warm-up and cool-down passes keep their places: moving one breaks the period for all
  // that follow. With few microbatches nothing is between.
  const bool steady = (num_microbatches * num_slices - 1) * block.period > block.backward[0];
  if (block.weight.empty()) grid.fill_weights();
  const int limit = grid.peak();
  grid.reorder(steady ? Grid::Part::warm_up : Grid::Part::all, false, limit);
  grid.squeeze();
  grid.drop_weights();
  grid.reorder(steady ? Grid::Part::cool_down : Grid::Part::all, true, limit);
  grid.fill_weights();
  grid.squeeze();
  grid.drop_weights();
  return grid.passes();
}

}  // namespace sluice
