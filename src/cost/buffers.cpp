#include "sluice/cost/buffers.h"

#include <algorithm>

#include "sluice/base/error.h"

namespace sluice {
namespace {

// How far each device's program is known to have come, by what was received.
using Clock = std::vector<std::int32_t>;

struct Sent {
  std::size_t to;
  std::int32_t used_at;  // position in the receiver's program
  std::int64_t bytes;
};

struct Device {
  std::size_t next = 0;
  Clock known;
  std::vector<Sent> sent;
  std::int64_t held = 0, peak = 0;
};

class Replay {
 public:
  Replay(const Schedule& schedule, std::span<const std::int64_t> tensor_bytes)
      : schedule_(schedule),
        tensor_bytes_(tensor_bytes),
        devices_(schedule.programs.size()),
        used_at_{std::vector<std::int32_t>(schedule.num_cells(), -1),
                 std::vector<std::int32_t>(schedule.num_cells(), -1)},
        carried_{std::vector<Clock>(schedule.num_cells()),
                 std::vector<Clock>(schedule.num_cells())} {
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      devices_[d].known.assign(devices_.size(), 0);
      const Program& program = schedule.programs[d];
      for (std::size_t i = 0; i < program.size(); ++i)
        if (program[i].kind == OpKind::F || gives_input_gradient(program[i].kind))
          used_at_[direction(program[i])][schedule.cell(program[i])] = static_cast<std::int32_t>(i);
    }
  }

  std::vector<std::int64_t> run() {
    for (bool advanced = true; advanced;) {
      advanced = false;
      for (std::size_t d = 0; d < devices_.size(); ++d)
        while (step(d))
          advanced = true;
    }
    std::vector<std::int64_t> peaks;
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      SLUICE_CHECK(devices_[d].next == schedule_.programs[d].size(), "device {} waits at op {}", d,
                   devices_[d].next);
      peaks.push_back(devices_[d].peak);
    }
    return peaks;
  }

 private:
  // 0: activations, 1: gradients.
  static std::size_t direction(const Op& op) {
    return op.kind == OpKind::F || op.kind == OpKind::SendF || op.kind == OpKind::RecvF ? 0 : 1;
  }
  std::int64_t bytes(const Op& op) const {
    return tensor_bytes_[static_cast<std::size_t>(op.microbatch) *
                             static_cast<std::size_t>(schedule_.num_slices) +
                         static_cast<std::size_t>(op.slice)];
  }
  static void hold(Device& device, std::int64_t bytes) {
    device.held += bytes;
    device.peak = std::max(device.peak, device.held);
  }

  // The next op of the device; false when there is none or its input has not been sent yet.
  bool step(std::size_t d) {
    Device& device = devices_[d];
    const Program& program = schedule_.programs[d];
    if (device.next == program.size()) return false;
    const Op& op = program[device.next];
    if (is_compute(op.kind) && !compute(device, op)) return false;
    ++device.next;
    device.known[d] = static_cast<std::int32_t>(device.next);
    if (is_recv(op.kind)) hold(device, bytes(op));
    if (is_send(op.kind)) send(device, op);
    return true;
  }

  void send(Device& device, const Op& op) {
    Op user = op;
    user.stage = partner_stage(op);
    const std::size_t way = direction(op), cell = schedule_.cell(user);
    device.sent.push_back(
        {static_cast<std::size_t>(schedule_.device_of(user)), used_at_[way][cell], bytes(op)});
    carried_[way][cell] = device.known;
  }

  bool compute(Device& device, const Op& op) {
    if (op.kind == OpKind::W) return true;
    const std::size_t way = direction(op), cell = schedule_.cell(op);
    const int from = way == 0 ? op.stage - 1 : op.stage + 1;
    const int to = way == 0 ? op.stage + 1 : op.stage - 1;
    const auto exists = [&](int stage) { return 0 <= stage && stage < schedule_.num_stages(); };
    // The loss turns the last stage's output into the gradient that its own I takes.
    const bool turns = to == schedule_.num_stages() && used_at_[1][cell] >= 0;
    if (from == schedule_.num_stages()) device.held -= bytes(op);
    if (exists(from)) {
      if (schedule_.placement.device_of(op.pipe, from) != schedule_.device_of(op)) {
        Clock& carried = carried_[way][cell];
        if (carried.empty()) return false;
        for (std::size_t q = 0; q < carried.size(); ++q)
          device.known[q] = std::max(device.known[q], carried[q]);
        carried = Clock();
      }
      device.held -= bytes(op);
    }
    if (exists(to) || turns) hold(device, bytes(op));
    std::erase_if(device.sent, [&](const Sent& sent) {
      const bool used = device.known[sent.to] > sent.used_at;
      if (used) device.held -= sent.bytes;
      return used;
    });
    return true;
  }

  const Schedule& schedule_;
  std::span<const std::int64_t> tensor_bytes_;
  std::vector<Device> devices_;
  // By direction and cell of the op that uses a tensor: its position, and what its sender knew.
  std::vector<std::int32_t> used_at_[2];
  std::vector<Clock> carried_[2];
};

}  // namespace

std::vector<std::int64_t> peak_buffer_bytes(const Schedule& lowered,
                                            std::span<const std::int64_t> tensor_bytes) {
  SLUICE_CHECK(
      std::ssize(tensor_bytes) == std::int64_t{lowered.num_microbatches} * lowered.num_slices,
      "sizes of {} tensors for {} microbatches in {} slices", tensor_bytes.size(),
      lowered.num_microbatches, lowered.num_slices);
  return Replay(lowered, tensor_bytes).run();
}

}  // namespace sluice
