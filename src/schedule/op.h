// One operation of a schedule: what runs, of which stage, microbatch and slice.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

enum class OpKind : std::uint16_t {
  F,  // forward
  I,  // input gradient
  W,  // weight gradient
  B,  // full backward: I then W
  SendF,
  RecvF,  // activation out of / into a stage
  SendB,
  RecvB,  // gradient out of / into a stage
  ReduceGrad,
  Update,
  Unshard,
  Reshard  // gather and free a stage's sharded parameters
};
inline constexpr int kNumOpKinds = 12;

// 12 bytes, because a cluster-sized schedule holds tens of millions of them.
struct Op {
  std::int32_t stage = 0;
  // Global number; of REDUCE_GRAD and UPDATE the window, where there are several; -1: none.
  std::int32_t microbatch = -1;
  std::uint16_t slice = 0;
  OpKind kind : 4 = OpKind::F;
  std::uint16_t joined : 1 = 0;  // runs as one with the op before it (PyTorch's OVERLAP_F_B)
  // Microbatch mod number of pipes; else the lowest pipe that has the stage on this device.
  std::uint16_t pipe : 11 = 0;

  friend bool operator==(const Op&, const Op&) = default;
};
static_assert(sizeof(Op) == 12);

constexpr Op make_op(OpKind kind, int stage, int microbatch, int slice = 0, int pipe = 0,
                     bool joined = false) {
  Op op;
  op.stage = stage;
  op.microbatch = microbatch;
  op.slice = static_cast<std::uint16_t>(slice);
  op.kind = kind;
  op.joined = joined;
  op.pipe = static_cast<std::uint16_t>(pipe) & 0x7ff;
  return op;
}

inline constexpr int kMaxSlices = 65536;
inline constexpr int kMaxPipes = 2048;

constexpr bool is_compute(OpKind kind) { return kind <= OpKind::B; }
constexpr bool is_send(OpKind kind) { return kind == OpKind::SendF || kind == OpKind::SendB; }
constexpr bool is_recv(OpKind kind) { return kind == OpKind::RecvF || kind == OpKind::RecvB; }
constexpr bool is_communication(OpKind kind) { return is_send(kind) || is_recv(kind); }
constexpr bool has_microbatch(OpKind kind) { return kind <= OpKind::RecvB; }
// A window is the microbatches of one update of the weights.
constexpr bool has_window(OpKind kind) {
  return kind == OpKind::ReduceGrad || kind == OpKind::Update;
}
// I and B both produce the gradient that the stage before waits for.
constexpr bool gives_input_gradient(OpKind kind) { return kind == OpKind::I || kind == OpKind::B; }
constexpr bool gives_weight_gradient(OpKind kind) { return kind == OpKind::W || kind == OpKind::B; }

// "F", "SEND_F", "REDUCE_GRAD", ... as in the text format.
std::string_view kind_name(OpKind kind);

// `2F0`, `5I3.1`, `1B4@1`, `0UPDATE`, `0UPDATE2`. A slice or pipe other than 0 is always written;
// the flags say whether 0 is.
std::string op_text(const Op& op, bool with_slice, bool with_pipe);

}  // namespace sluice
