#include "sluice/sim/steady.h"

#include <algorithm>
#include <cmath>

#include "sluice/base/error.h"
#include "sluice/schedule/transforms/first_windows.h"
#include "sluice/sim/simulate.h"

namespace sluice {
namespace {

constexpr double kExactly = 1e-9;   // of the makespan: rounding
constexpr double kMeasured = 1e-3;  // of what a window adds
constexpr int kLongestPeriod = 64;
constexpr double kMostOps = 20e6;  // simulated in search of a period

// The schedule's makespan and its devices' work, by how many of the last windows are left out.
class Shorter {
 public:
  Shorter(const Schedule& schedule, const Costs& costs, const SimulateOptions& options,
          const Simulation& whole)
      : schedule_(schedule), costs_(costs), options_(options) {
    options_.timeline = false;
    keep(whole);
  }

  // What the window before the last `without` adds to the makespan.
  double added(int without) { return makespan(without) - makespan(without + 1); }

  SteadyWindow mean_of_last(int windows) {
    SteadyWindow mean;
    mean.period = windows;
    mean.added = (makespan(0) - makespan(windows)) / windows;
    for (std::size_t d = 0; d < kept_[0].busy.size(); ++d)
      mean.work = std::max(mean.work, (kept_[0].busy[d] - at(windows).busy[d]) / windows);
    mean.added = std::max(mean.added, mean.work);  // but for rounding, or before it has settled
    return mean;
  }

  // How far apart devices and makespan have moved in so many windows. In a rhythm all go at the
  // pace of the slowest; before that one may still use up what others did ahead of it.
  double drift(int windows) {
    const double added = makespan(0) - makespan(windows);
    double most = 0;
    for (std::size_t d = 0; d < kept_[0].end.size(); ++d)
      most = std::max(most, std::abs(kept_[0].end[d] - at(windows).end[d] - added));
    return most;
  }

 private:
  double makespan(int without) { return at(without).makespan; }

  struct Kept {
    double makespan;
    std::vector<double> busy, end;  // by device
  };

  void keep(const Simulation& simulation) {
    Kept& kept = kept_.emplace_back(Kept{simulation.makespan, {}, {}});
    for (const DeviceResult& device : simulation.devices) {
      kept.busy.push_back(device.busy);
      kept.end.push_back(device.last_end);
    }
  }

  const Kept& at(int without) {
    while (static_cast<int>(kept_.size()) <= without)
      keep(
          simulate(first_windows(schedule_, schedule_.num_windows - static_cast<int>(kept_.size())),
                   costs_, options_));
    return kept_[static_cast<std::size_t>(without)];
  }

  const Schedule& schedule_;
  const Costs& costs_;
  SimulateOptions options_;
  std::vector<Kept> kept_;
};

}  // namespace

std::optional<SteadyWindow> steady_window(const Schedule& schedule, const Costs& costs,
                                          const SimulateOptions& options, const Simulation& whole) {
  const int windows = schedule.num_windows;
  if (windows < 3) return std::nullopt;
  Shorter shorter(schedule, costs, options, whole);
  // The first window fills the pipeline: what it takes repeats nothing.
  const int increments = windows - 1;
  // Windows within which one microbatch delays another: as long, some may be alike by chance.
  const int devices = schedule.num_devices(), size = schedule.window_size();
  const int chained = size >= devices ? 1 : (2 * devices + size - 1) / size;
  const auto repeats = [&](int period, double tolerance) {
    const int least = period + std::max(period, chained);
    if (least > increments) return false;
    const int looked_at = std::min(std::max(least, 3 * period), increments);
    for (int n = 0; n + period < looked_at; ++n)
      if (std::abs(shorter.added(n) - shorter.added(n + period)) > tolerance) return false;
    return shorter.drift(period) <= period * tolerance;
  };
  double ops = 0;
  for (const Program& program : schedule.programs)
    ops += static_cast<double>(program.size());
  const int affordable = static_cast<int>(std::max(1.0, std::min(kMostOps / (3 * ops), 1e3)));
  const int longest = std::min({increments / 2, kLongestPeriod, affordable});
  for (int period = 1; period <= longest; ++period)
    if (repeats(period, kExactly * whole.makespan)) return shorter.mean_of_last(period);
  for (int period = 1; period <= longest; ++period)
    if (repeats(period, kMeasured * std::abs(shorter.added(0))))
      return shorter.mean_of_last(period);
  return std::nullopt;
}

SteadyWindow mean_window(const Schedule& schedule, const Costs& costs) {
  SLUICE_CHECK(schedule.num_windows > 1, "{} has {} windows", schedule.name, schedule.num_windows);
  const Simulation whole = simulate(schedule, costs);
  if (const auto steady = steady_window(schedule, costs, {}, whole)) return *steady;
  return Shorter(schedule, costs, {}, whole).mean_of_last(schedule.num_windows / 2);
}

}  // namespace sluice
