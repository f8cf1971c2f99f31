// What has been seen of one (stage, microbatch, slice), or (pipe, stage, window), as a set of op
// kinds: tables of validate().
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/schedule/schedule.h"

namespace sluice {

using Seen = std::uint16_t;
constexpr Seen bit(OpKind kind) { return static_cast<Seen>(1u << static_cast<unsigned>(kind)); }
// What meets an input: F, or either op that gives the input gradient or the weight gradient.
constexpr Seen wanted(const Op& input) {
  if (input.kind == OpKind::I) return bit(OpKind::I) | bit(OpKind::B);
  if (input.kind == OpKind::W) return bit(OpKind::W) | bit(OpKind::B);
  return bit(input.kind);
}

// The ops of a schedule that have been seen. UNSHARD and RESHARD leave no trace.
class SeenOps {
 public:
  explicit SeenOps(const Schedule& schedule)
      : schedule_(schedule),
        cells_(schedule.num_cells(), 0),
        windows_(schedule.num_window_cells(), 0) {}

  // REQUIRES: the op's numbers are in range.
  Seen of(const Op& op) const {
    if (has_microbatch(op.kind)) return cells_[schedule_.cell(op)];
    return has_window(op.kind) ? windows_[schedule_.window_cell(op)] : Seen{0};
  }
  bool has(const Op& op) const { return (of(op) & bit(op.kind)) != 0; }
  bool meets(const Op& input) const { return (of(input) & wanted(input)) != 0; }
  void add(const Op& op) {
    if (has_microbatch(op.kind))
      cells_[schedule_.cell(op)] |= bit(op.kind);
    else if (has_window(op.kind))
      windows_[schedule_.window_cell(op)] |= bit(op.kind);
  }

 private:
  const Schedule& schedule_;
  std::vector<Seen> cells_, windows_;
};

}  // namespace sluice
