// A schedule is a value: a placement plus one ordered program per device. Time is not part of it;
// the simulator and the runtime add that.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sluice/schedule/op.h"
#include "sluice/schedule/placement.h"

namespace sluice {

using Program = std::vector<Op>;

struct Schedule {
  std::string name;
  Placement placement;
  int num_microbatches = 0;
  int num_slices = 1;
  std::vector<std::int64_t> slice_sizes;  // tokens of each slice; empty means equal slices
  std::vector<Program> programs;          // one per device

  int num_devices() const { return static_cast<int>(programs.size()); }
  int num_stages() const { return placement.num_stages(); }
  int num_pipes() const { return placement.num_pipes(); }

  // Microbatch m runs in pipe m mod K.
  int pipe_of(int microbatch) const { return microbatch % num_pipes(); }
  int device_of(const Op& op) const { return placement.device_of(op.pipe, op.stage); }

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

// What an op needs before it may run. An input I is met by the I or by the B of the same stage,
// microbatch and slice. Where producer and consumer are on different devices, the input F (or I)
// arrives through a send and a receive. This is the only place that states dependencies.
class Inputs {
 public:
  void add(const Op& op) { ops_[size_++] = op; }
  const Op* begin() const { return ops_.data(); }
  const Op* end() const { return ops_.data() + size_; }
  std::size_t size() const { return size_; }

 private:
  std::array<Op, 3> ops_;
  std::size_t size_ = 0;
};

Inputs inputs_of(const Op& op, int num_stages, int num_slices);
inline Inputs inputs_of(const Op& op, const Schedule& schedule) {
  return inputs_of(op, schedule.num_stages(), schedule.num_slices);
}

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
