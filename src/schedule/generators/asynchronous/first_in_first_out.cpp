#include "sluice/schedule/generators/asynchronous/first_in_first_out.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "sluice/schedule/transforms/reductions.h"
#include "sluice/schedule/transforms/split_backward.h"

namespace sluice::generators {
namespace {

struct Ready {
  double since;  // when its input was there
  Op op;
};
// Of equals a backward goes first, then the lower microbatch.
bool goes_first(const Ready& a, const Ready& b) {
  if (a.since != b.since) return a.since < b.since;
  if (a.op.kind != b.op.kind) return a.op.kind == OpKind::B;
  return a.op.microbatch < b.op.microbatch;
}
struct GoesLater {
  bool operator()(const Ready& a, const Ready& b) const { return goes_first(b, a); }
};

struct Started {
  double start, end;
  Op op;
};

class Line {
 public:
  Line(const GeneratorOptions& options, const Placement& placement, int in_flight,
       const Windows& windows)
      : options_(options),
        placement_(placement),
        microbatches_(windows.count * windows.microbatches),
        split_(windows.split),
        queues_(static_cast<std::size_t>(placement.num_devices())),
        free_(queues_.size(), 0),
        ran_(queues_.size()),
        entered_(static_cast<std::size_t>(placement.num_pipes()), 0) {
    for (int pipe = 0; pipe < placement.num_pipes(); ++pipe)
      for (int n = 0; n < in_flight; ++n)
        enter(pipe, 0);
  }

  // What each device ran, in order.
  std::vector<std::vector<Started>> run() {
    for (int device = next_device(); device >= 0; device = next_device())
      run_first(static_cast<std::size_t>(device));
    return std::move(ran_);
  }

 private:
  // The next microbatch of a pipe, if there is one.
  void enter(int pipe, double time) {
    const int x = entered_[static_cast<std::size_t>(pipe)]++;
    const int microbatch = x * placement_.num_pipes() + pipe;
    if (microbatch < microbatches_) add(make_op(OpKind::F, 0, microbatch, 0, pipe), time);
  }

  void add(const Op& op, double time) {
    queues_[static_cast<std::size_t>(placement_.device_of(op.pipe, op.stage))].push({time, op});
  }

  // The device whose next op can start first.
  int next_device() const {
    int first = -1;
    double start_of_first = 0;
    for (std::size_t d = 0; d < queues_.size(); ++d) {
      if (queues_[d].empty()) continue;
      const double start = std::max(free_[d], queues_[d].top().since);
      if (first >= 0 && start >= start_of_first) continue;
      first = static_cast<int>(d);
      start_of_first = start;
    }
    return first;
  }

  void run_first(std::size_t device) {
    const Ready ready = queues_[device].top();
    queues_[device].pop();
    const Op& op = ready.op;
    const OpTimes& times = options_.times_of(op.stage);
    const double start = std::max(free_[device], ready.since);
    const bool forward = op.kind == OpKind::F;
    const double end = start + (forward ? times.f : times.i + times.w);
    free_[device] = end;
    ran_[device].push_back({start, end, op});
    const int last = placement_.num_stages() - 1;
    Op next = op;
    if (forward && op.stage == last) {
      next.kind = OpKind::B;
      add(next, end);
    } else if (forward) {
      ++next.stage;
      add(next, arrival(op, next, end));
    } else if (op.stage > 0) {
      --next.stage;
      add(next, arrival(op, next, split_ ? start + times.i : end));
    } else {
      enter(op.pipe, end);
    }
  }

  double arrival(const Op& from, const Op& to, double time) const {
    const bool here =
        placement_.device_of(from.pipe, from.stage) == placement_.device_of(to.pipe, to.stage);
    return time + (here ? 0 : options_.comm);
  }

  const GeneratorOptions& options_;
  const Placement& placement_;
  int microbatches_;
  bool split_;
  std::vector<std::priority_queue<Ready, std::vector<Ready>, GoesLater>> queues_;
  std::vector<double> free_;
  std::vector<std::vector<Started>> ran_;
  std::vector<int> entered_;
};

Placement turned_pipes(int devices, int pipes) {
  std::vector<std::vector<int>> placement(static_cast<std::size_t>(pipes));
  for (int pipe = 0; pipe < pipes; ++pipe)
    for (int stage = 0; stage < devices; ++stage)
      placement[static_cast<std::size_t>(pipe)].push_back(
          ((2 * pipe + (pipe % 2 == 0 ? stage : 1 - stage)) % devices + devices) % devices);
  return Placement::custom(devices, std::move(placement));
}

}  // namespace

Schedule first_in_first_out(const GeneratorOptions& options, int pipes, int in_flight,
                            const Windows& windows) {
  Schedule schedule;
  schedule.placement = turned_pipes(options.devices, pipes);
  schedule.num_windows = windows.count;
  schedule.num_microbatches = windows.count * windows.microbatches;
  const std::vector<std::vector<Started>> ran =
      Line(options, schedule.placement, in_flight, windows).run();

  std::vector<double> cut(static_cast<std::size_t>(windows.count), 0);
  for (const std::vector<Started>& device : ran)
    for (const Started& started : device)
      if (started.op.kind == OpKind::B) {
        double& of_window = cut[static_cast<std::size_t>(schedule.window_of(started.op))];
        of_window = std::max(of_window, started.end);
      }
  for (std::size_t w = 1; w < cut.size(); ++w)
    cut[w] = std::max(cut[w], cut[w - 1]);

  for (int device = 0; device < options.devices; ++device) {
    Program& program = schedule.programs.emplace_back();
    int window = 0;
    const auto update = [&] {
      for (const Op& op : updates_of(schedule, device, window))
        program.push_back(op);
      ++window;
    };
    for (const Started& started : ran[static_cast<std::size_t>(device)]) {
      while (window + 1 < windows.count && started.start >= cut[static_cast<std::size_t>(window)])
        update();
      program.push_back(started.op);
    }
    while (window < windows.count)
      update();
  }
  schedule = add_reductions(schedule);
  return windows.split ? split_backward(schedule) : schedule;
}

}  // namespace sluice::generators
