#include "sluice/sim/simulate.h"

#include "sluice/sim/contended.h"
#include "sluice/sim/player.h"

namespace sluice {
namespace {

// Every op takes its time, whatever the others do: a device can run ahead until it must wait.
class FreePlayer : Player {
 public:
  FreePlayer(const Schedule& schedule, const Costs& costs, const SimulateOptions& options)
      : Player(schedule, costs, options) {}

  Simulation run() {
    while (!runnable_.empty())
      advance(take_runnable());
    return finish();
  }

 private:
  // Lets one device run until it must wait.
  void advance(std::size_t d) {
    const Program& program = schedule_.programs[d];
    Device& device = state_[d];
    while (device.next < program.size()) {
      const std::size_t end = group_end(program, device.next);
      // A group starts when the inputs of all its members are there.
      double start = device.clock;
      int message = -1;
      for (std::size_t i = device.next; i < end; ++i)
        if (occupies(program[i].kind) && !wait_for_inputs(d, program[i], start, message)) return;
      const Op& op = program[device.next];
      if (!occupies(op.kind))
        run_beside(d, op);
      else if (end == device.next + 1)
        run_op(d, op, start, duration(op), message);
      else
        run_group(d, device.next, end, start, message);
      if (op.kind == OpKind::Update) finish_window_op(d, op, device.clock);
      send_outputs(d, device.next, end);
      device.next = end;
    }
  }

  void run_op(std::size_t d, const Op& op, double start, double duration, int message) {
    record(d, op, start, start + duration, message);
    state_[d].clock = start + duration;
  }

  void run_group(std::size_t d, std::size_t first, std::size_t end, double start, int message) {
    const Program& program = schedule_.programs[d];
    if (costs_.overlap == 0) {
      for (std::size_t i = first; i < end; ++i) {
        run_op(d, program[i], std::max(start, state_[d].clock), costs_.duration(program[i]),
               i == first ? message : -1);
      }
      return;
    }
    // Members run side by side over the whole of the group's time.
    const double duration = together(program, first, end);
    for (std::size_t i = first; i < end; ++i)
      run_op(d, program[i], start, duration, message);
    result_.devices[d].busy -= static_cast<double>(end - first - 1) * duration;
  }
};

}  // namespace

Simulation simulate(const Schedule& schedule, const Costs& costs, const SimulateOptions& options) {
  if (!costs.contention.empty()) return simulate_contended(schedule, costs, options);
  return FreePlayer(schedule, costs, options).run();
}

namespace {

// The span behind which a device's last reduction began, or the first of those that it waited for.
int first_cause(const DeviceTimeline& device) {
  std::size_t i = device.reductions.size() - 1;
  const auto waited = [&](const Reduction& reduction) {
    return reduction.start > device.spans[static_cast<std::size_t>(reduction.span)].end;
  };
  while (i > 0 && waited(device.reductions[i]))
    --i;
  return device.reductions[i].span;
}

}  // namespace

std::vector<CriticalStep> critical_path(const Timeline& timeline) {
  std::vector<CriticalStep> path;
  CriticalStep at{-1, -1};
  double latest = -1;
  for (std::size_t d = 0; d < timeline.devices.size(); ++d) {
    const auto& spans = timeline.devices[d].spans;
    for (std::size_t i = spans.size(); i-- > 0 && spans[i].end >= latest;)
      if (spans[i].end > latest) {
        latest = spans[i].end;
        at = {static_cast<int>(d), static_cast<int>(i)};
      }
  }
  for (std::size_t d = 0; d < timeline.devices.size(); ++d) {
    const DeviceTimeline& device = timeline.devices[d];
    if (device.reductions.empty() || device.reductions.back().end <= latest) continue;
    latest = device.reductions.back().end;
    at = {static_cast<int>(d), first_cause(device)};
  }
  while (at.device >= 0 && at.span >= 0) {
    path.push_back(at);
    const Span& span = timeline.devices[static_cast<std::size_t>(at.device)]
                           .spans[static_cast<std::size_t>(at.span)];
    if (span.message >= 0) {
      const Message& message = timeline.messages[static_cast<std::size_t>(span.message)];
      at = {message.from, message.span};
    } else {
      --at.span;
    }
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace sluice
