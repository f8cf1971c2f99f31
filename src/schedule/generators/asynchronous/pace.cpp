#include "sluice/schedule/generators/asynchronous/pace.h"

#include <algorithm>

#include "sluice/base/error.h"

namespace sluice::generators {
namespace {

constexpr double kNotYet = -1;

// When each op ended. I and W of one cell are told apart; B ends both.
class Ends {
 public:
  explicit Ends(const Schedule& schedule)
      : schedule_(schedule),
        cells_(3 * schedule.num_cells(), kNotYet),
        windows_(2 * schedule.num_window_cells(), kNotYet) {}

  double of(const Op& input) const { return const_cast<Ends*>(this)->at(input); }

  void set(const Op& op, double end) {
    Op made = op;
    if (op.kind == OpKind::B) {
      made.kind = OpKind::I;
      at(made) = end;
      made.kind = OpKind::W;
    }
    at(made) = end;
  }

 private:
  double& at(const Op& op) {
    if (has_window(op.kind))
      return windows_[2 * schedule_.window_cell(op) + (op.kind == OpKind::Update ? 1 : 0)];
    const std::size_t kind = op.kind == OpKind::F ? 0 : op.kind == OpKind::I ? 1 : 2;
    return cells_[3 * schedule_.cell(op) + kind];
  }

  const Schedule& schedule_;
  std::vector<double> cells_, windows_;
};

double duration_of(const Op& op, const GeneratorOptions& options) {
  const OpTimes& times = options.times_of(op.stage);
  switch (op.kind) {
    case OpKind::F: return times.f;
    case OpKind::I: return times.i;
    case OpKind::W: return times.w;
    case OpKind::B: return times.i + times.w;
    default: return 0;
  }
}

}  // namespace

double makespan_of(const Schedule& schedule, const GeneratorOptions& options) {
  Ends ends(schedule);
  const std::size_t n = schedule.programs.size();
  std::vector<std::size_t> next(n, 0);
  std::vector<double> clock(n, 0);
  const auto run_next = [&](std::size_t device) {
    const Op& op = schedule.programs[device][next[device]];
    double start = clock[device];
    for (const Op& input : inputs_of(op, schedule)) {
      const double end = ends.of(input);
      if (end == kNotYet) return false;
      const bool here = schedule.device_of(input) == static_cast<int>(device);
      start = std::max(start, end + (here ? 0 : options.comm));
    }
    clock[device] = start + duration_of(op, options);
    ends.set(op, clock[device]);
    ++next[device];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t device = 0; device < n; ++device)
      while (next[device] < schedule.programs[device].size() && run_next(device))
        moved = true;
  }
  for (std::size_t device = 0; device < n; ++device)
    SLUICE_CHECK(next[device] == schedule.programs[device].size(), "{}: device {} stops at op {}",
                 schedule.name, device, next[device]);
  return *std::max_element(clock.begin(), clock.end());
}

std::vector<double> stash_of(const Schedule& schedule, double keep_after_i) {
  std::vector<double> peaks;
  for (const Program& program : schedule.programs) {
    double held = 0, peak = 0;
    for (const Op& op : program) {
      if (op.kind == OpKind::F) peak = std::max(peak, held += 1);
      if (op.kind == OpKind::B) held -= 1;
      if (op.kind == OpKind::I) held -= 1 - keep_after_i;
      if (op.kind == OpKind::W) held -= keep_after_i;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace sluice::generators
