// A schedule is a value: a placement plus one ordered program per device. Time is not part of it;
// the simulator and the runtime add that.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/base/names.h"
#include "sluice/schedule/op.h"
#include "sluice/schedule/placement.h"

namespace sluice {

using Program = std::vector<Op>;

// Which weights the forwards and backwards of a microbatch use, where updates come between them.
enum class WeightVersions {
  newest,    // whatever the device holds at the moment
  stash,     // a backward uses what its forward used
  previous,  // all of window w uses the weights that the update of window w - 2 left
  predicted  // a window's forwards use what its first one predicts of the updates to come; a
             // backward uses the newest
};

constexpr auto names_of(WeightVersions) {
  return std::array<std::string_view, 4>{"newest", "stash", "previous", "predicted"};
}

struct Schedule {
  std::string name;
  Placement placement;
  int num_microbatches = 0;  // of all windows
  // A window is the microbatches of one update. Without UPDATE ops there is one, and whoever runs
  // the schedule updates at its end.
  int num_windows = 1;
  WeightVersions weights = WeightVersions::newest;
  bool updates_by_stage = false;  // an UPDATE waits for its own stage's gradients alone
  int num_slices = 1;
  std::vector<std::int64_t> slice_sizes;  // tokens of each slice; empty means equal slices
  std::vector<Program> programs;          // one per device

  int num_devices() const { return static_cast<int>(programs.size()); }
  int num_stages() const { return placement.num_stages(); }
  int num_pipes() const { return placement.num_pipes(); }

  // Microbatch m runs in pipe m mod K.
  int pipe_of(int microbatch) const { return microbatch % num_pipes(); }
  int device_of(const Op& op) const { return placement.device_of(op.pipe, op.stage); }

  int window_size() const { return num_microbatches / num_windows; }
  // The window of an op: its microbatch's, or its own; 0 of kinds that have neither.
  int window_of(const Op& op) const {
    if (has_microbatch(op.kind)) return op.microbatch / window_size();
    return has_window(op.kind) && op.microbatch > 0 ? op.microbatch : 0;
  }
  // REDUCE_GRAD or UPDATE of a stage that the device holds.
  Op window_op(OpKind kind, int device, int stage, int window) const {
    return make_op(kind, stage, num_windows > 1 ? window : -1, 0,
                   placement.lowest_pipe(device, stage));
  }
  // The device whose UPDATE of a stage comes first and gives the others the new weights.
  int owner_of(int stage) const { return placement.device_of(0, stage); }

  // Dense number of (stage, microbatch, slice), for tables. The microbatch implies the pipe.
  std::size_t num_cells() const {
    return static_cast<std::size_t>(num_stages()) * static_cast<std::size_t>(num_microbatches) *
           static_cast<std::size_t>(num_slices);
  }
  std::size_t cell(const Op& op) const {
    return (static_cast<std::size_t>(op.stage) * static_cast<std::size_t>(num_microbatches) +
            static_cast<std::size_t>(op.microbatch)) *
               static_cast<std::size_t>(num_slices) +
           op.slice;
  }

  // The same for the ops that have a window: (pipe, stage, window).
  std::size_t num_window_cells() const {
    return static_cast<std::size_t>(num_pipes()) * static_cast<std::size_t>(num_stages()) *
           static_cast<std::size_t>(num_windows);
  }
  std::size_t window_cell(const Op& op) const {
    return (static_cast<std::size_t>(op.pipe) * static_cast<std::size_t>(num_stages()) +
            static_cast<std::size_t>(op.stage)) *
               static_cast<std::size_t>(num_windows) +
           static_cast<std::size_t>(window_of(op));
  }

  // The share of a microbatch that slice c holds: its tokens, or 1/k.
  double slice_share(int slice) const;

  std::string text(const Op& op) const { return op_text(op, num_slices > 1, num_pipes() > 1); }
  // The ops of one device joined by ',', groups as (a;b)OVERLAP_F_B.
  std::string program_text(int device) const;

  std::size_t num_compute_ops() const;
  bool has(OpKind kind) const;
  bool has_communication() const;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// The schedule with empty programs.
Schedule without_ops(const Schedule& schedule);

// What an op needs before it may run. An input I is met by the I or by the B of the same stage,
// microbatch and slice, an input W by the W or the B. Where producer and consumer are on different
// devices, the input F (or I) arrives through a send and a receive. REDUCE_GRAD<w> needs every
// weight gradient of its window, stage and device; UPDATE<w> every REDUCE_GRAD<w> (with
// updates_by_stage those of its stage), the UPDATE before it, and on a device that does not own the
// stage the owner's UPDATE<w>: these come from other devices without any message of the schedule.
// This is the only place that states dependencies.
class Inputs {
 public:
  void add(const Op& op) {
    if (size_ < few_.size())
      few_[size_] = op;
    else if (size_ == few_.size())
      many_.assign(few_.begin(), few_.end());
    if (size_ >= few_.size()) many_.push_back(op);
    ++size_;
  }
  const Op* begin() const { return size_ > few_.size() ? many_.data() : few_.data(); }
  const Op* end() const { return begin() + size_; }
  std::size_t size() const { return size_; }

 private:
  std::array<Op, 3> few_;
  std::vector<Op> many_;
  std::size_t size_ = 0;
};

Inputs inputs_of(const Op& op, const Schedule& schedule);
// The same for an op that has a microbatch, before there is a schedule.
Inputs inputs_of(const Op& op, int num_stages, int num_slices);

// The stage at the other end of a SEND or RECV.
constexpr int partner_stage(const Op& op) {
  return op.kind == OpKind::SendF || op.kind == OpKind::RecvB ? op.stage + 1 : op.stage - 1;
}

// One past the last op of the group that starts at `first`; first + 1 for an op on its own.
inline std::size_t group_end(const Program& program, std::size_t first) {
  std::size_t end = first + 1;
  while (end < program.size() && program[end].joined)
    ++end;
  return end;
}

}  // namespace sluice
