#include "sluice/sim/contended.h"

#include <functional>
#include <queue>

#include "sluice/sim/player.h"

namespace sluice {
namespace {

// Plays the devices in order of time, since an op's speed depends on what the others do meanwhile.
//
// At any moment all running ops have the same speed. So they share a clock of work done, which runs
// at that speed: an op that starts when it shows w ends when it shows w + its duration, whatever
// starts or ends in between. Messages and reductions take real time, known when they leave.
class ContendedPlayer : Player {
 public:
  ContendedPlayer(const Schedule& schedule, const Costs& costs, const SimulateOptions& options)
      : Player(schedule, costs, options), running_(schedule.programs.size()) {
    SLUICE_CHECK(costs.contention.size() == schedule.programs.size(),
                 "contention of {} devices for {}", costs.contention.size(),
                 schedule.programs.size());
  }

  Simulation run() {
    for (;;) {
      while (!runnable_.empty())
        advance(take_runnable());
      if (starts_.empty() && ends_.empty()) return finish();
      if (starts_.empty() || (!ends_.empty() && next_end() <= starts_.top().at))
        end_piece();
      else
        pass_until_next_start();
    }
  }

 private:
  // A group that waits for its start or runs; [next, piece_end) of it runs now.
  struct Running {
    std::size_t first = 0, piece_end = 0, end = 0;
    double start = 0;
    int message = -1;
  };
  struct Event {
    double at = 0;
    std::size_t device = 0;
    bool operator>(const Event& other) const { return at > other.at; }
  };
  using Events = std::priority_queue<Event, std::vector<Event>, std::greater<>>;

  double speed() const { return costs_.contention[busy_ - 1]; }
  double next_end() const { return now_ + (ends_.top().at - work_) / speed(); }

  // Lets one device go on from now until it waits or computes.
  void advance(std::size_t d) {
    const Program& program = schedule_.programs[d];
    Device& device = state_[d];
    for (; device.next < program.size(); ++device.next) {
      if (occupies(program[device.next].kind)) return await_start(d);
      run_beside(d, program[device.next]);
    }
  }

  void await_start(std::size_t d) {
    const Program& program = schedule_.programs[d];
    const std::size_t first = state_[d].next, end = group_end(program, first);
    Running group{first, first, end, state_[d].clock, -1};
    for (std::size_t i = first; i < end; ++i)
      if (!wait_for_inputs(d, program[i], group.start, group.message)) return;
    running_[d] = group;
    if (group.start <= now_)
      start_group(d);
    else
      starts_.push({group.start, d});
  }

  void start_group(std::size_t d) {
    ++busy_;
    start_piece(d);
  }

  // What runs at once: a group side by side, or in a serial one the next member.
  void start_piece(std::size_t d) {
    const Program& program = schedule_.programs[d];
    const std::size_t first = state_[d].next;
    Running& group = running_[d];
    const bool alone = costs_.overlap == 0 || group.end == first + 1;
    group.piece_end = alone ? first + 1 : group.end;
    ends_.push(
        {work_ + (alone ? duration(program[first]) : together(program, first, group.end)), d});
  }

  void pass_until_next_start() {
    const auto [time, d] = starts_.top();
    starts_.pop();
    // Rounding must not carry the work past an end that comes later.
    if (!ends_.empty()) work_ = std::min(work_ + (time - now_) * speed(), ends_.top().at);
    now_ = time;
    start_group(d);
  }

  void end_piece() {
    now_ = next_end();
    work_ = ends_.top().at;
    const std::size_t d = ends_.top().device;
    ends_.pop();
    const Program& program = schedule_.programs[d];
    Device& device = state_[d];
    Running& group = running_[d];
    for (std::size_t i = device.next; i < group.piece_end; ++i)
      record(d, program[i], group.start, now_, group.message);
    const auto beside = static_cast<double>(group.piece_end - device.next - 1);
    if (beside > 0) result_.devices[d].busy -= beside * (now_ - group.start);
    device.clock = now_;
    device.next = group.piece_end;
    if (device.next < group.end) {
      group.start = now_;
      group.message = -1;
      return start_piece(d);
    }
    --busy_;
    if (program[group.first].kind == OpKind::Update)
      finish_window_op(d, program[group.first], now_);
    send_outputs(d, group.first, group.end);
    advance(d);
  }

  double now_ = 0;
  double work_ = 0;       // shown by the clock of work done
  std::size_t busy_ = 0;  // devices that compute
  Events starts_;         // by time
  Events ends_;           // by the clock of work done
  std::vector<Running> running_;
};

}  // namespace

Simulation simulate_contended(const Schedule& schedule, const Costs& costs,
                              const SimulateOptions& options) {
  return ContendedPlayer(schedule, costs, options).run();
}

}  // namespace sluice
