#include "sluice/schedule/transforms/communication.h"

#include "sluice/base/error.h"
#include "sluice/schedule/seen.h"

namespace sluice {
std::optional<SendRecv> send_recv_of(const Op& op, const Schedule& schedule) {
  int to_stage;
  OpKind send, recv;
  if (op.kind == OpKind::F) {
    if (op.stage == schedule.num_stages() - 1) return std::nullopt;
    to_stage = op.stage + 1;
    send = OpKind::SendF;
    recv = OpKind::RecvF;
  } else if (gives_input_gradient(op.kind)) {
    if (op.stage == 0) return std::nullopt;
    to_stage = op.stage - 1;
    send = OpKind::SendB;
    recv = OpKind::RecvB;
  } else {
    return std::nullopt;
  }
  SendRecv pair;
  pair.from = schedule.placement.device_of(op.pipe, op.stage);
  pair.to = schedule.placement.device_of(op.pipe, to_stage);
  if (pair.from == pair.to) return std::nullopt;
  pair.send = op;
  pair.send.joined = 0;
  pair.recv = pair.send;
  pair.send.kind = send;
  pair.recv.kind = recv;
  pair.recv.stage = to_stage;
  return pair;
}

Lowered add_communication(const Schedule& schedule) {
  Lowered lowered;
  Schedule& out = lowered.schedule;
  const std::size_t num_devices = schedule.programs.size();
  out = without_ops(schedule);
  for (std::size_t d = 0; d < num_devices; ++d)
    out.programs[d].reserve(schedule.programs[d].size() * 3);
  lowered.placed.assign(num_devices, 0);

  SeenOps done(schedule);
  const auto ready = [&](const Op& op) {
    for (const Op& input : inputs_of(op, schedule))
      if (!done.meets(input)) return false;
    return true;
  };

  // A device whose next op is not ready can only be helped by a receive, or where it is an UPDATE
  // by a reduction or update elsewhere; so it sleeps until one.
  std::vector<char> asleep(num_devices, 0);
  bool advanced = true;
  while (advanced) {
    advanced = false;
    for (std::size_t d = 0; d < num_devices; ++d) {
      if (asleep[d]) continue;
      const Program& program = schedule.programs[d];
      const std::size_t first = lowered.placed[d];
      asleep[d] = 1;
      if (first == program.size()) continue;
      const std::size_t end = group_end(program, first);
      bool all_ready = true;
      for (std::size_t i = first; i < end && all_ready; ++i) {
        SLUICE_CHECK(!is_communication(program[i].kind), "{} in a schedule to be lowered",
                     schedule.text(program[i]));
        all_ready = ready(program[i]);
      }
      if (!all_ready) continue;
      asleep[d] = 0;
      for (std::size_t i = first; i < end; ++i)
        out.programs[d].push_back(program[i]);
      for (std::size_t i = first; i < end; ++i) {
        const Op& op = program[i];
        done.add(op);
        if (has_window(op.kind)) asleep.assign(num_devices, 0);
        const auto pair = send_recv_of(op, schedule);
        if (!pair) continue;
        out.programs[d].push_back(pair->send);
        out.programs[static_cast<std::size_t>(pair->to)].push_back(pair->recv);
        asleep[static_cast<std::size_t>(pair->to)] = 0;
      }
      lowered.placed[d] = end;
      advanced = true;
    }
  }
  for (std::size_t d = 0; d < num_devices; ++d)
    if (lowered.placed[d] < schedule.programs[d].size()) lowered.complete = false;
  return lowered;
}

Schedule strip_communication(const Schedule& schedule) {
  Schedule out = schedule;
  for (Program& program : out.programs)
    std::erase_if(program, [](const Op& op) { return is_communication(op.kind); });
  return out;
}

}  // namespace sluice
