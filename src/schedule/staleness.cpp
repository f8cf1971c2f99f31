#include "sluice/schedule/staleness.h"

#include <algorithm>
#include <map>
#include <set>

#include "sluice/base/error.h"

namespace sluice {
namespace {

// One stage on one device, as its ops go by.
class HeldStage {
 public:
  explicit HeldStage(WeightVersions weights) : weights_(weights) {}

  // The version that a forward of a window uses, or that its weights were predicted from.
  int version_of_forward(int window) {
    if (weights_ == WeightVersions::previous) return std::max(0, window - 1);
    if (weights_ == WeightVersions::predicted)
      return predicted_from_.try_emplace(window, updates_).first->second;
    return updates_;
  }
  void forward(std::size_t cell, int window) { used_[cell] = version_of_forward(window); }
  // The updates between a forward and its backward, which no longer needs its weights.
  int backward(std::size_t cell) {
    const auto found = used_.find(cell);
    if (found == used_.end()) return 0;  // reported by the proof
    const bool newest = weights_ == WeightVersions::newest || weights_ == WeightVersions::predicted;
    const int mismatch = newest ? updates_ - found->second : 0;
    used_.erase(found);
    return mismatch;
  }
  void update() { ++updates_; }
  int updates() const { return updates_; }

  // Versions kept at the moment, where `window` is the first that has forwards to come.
  int copies(int window) const {
    if (weights_ == WeightVersions::newest) return 1;
    if (weights_ == WeightVersions::predicted) {
      const auto from = predicted_from_.find(window);
      return from != predicted_from_.end() && from->second < window ? 2 : 1;
    }
    std::set<int> kept = {updates_};
    for (const auto& [cell, version] : used_)
      kept.insert(version);
    if (weights_ == WeightVersions::previous)
      for (int version = std::max(0, window - 1); version < updates_; ++version)
        kept.insert(version);
    return static_cast<int>(kept.size());
  }

 private:
  WeightVersions weights_;
  int updates_ = 0;
  std::map<int, int> predicted_from_;  // by window
  std::map<std::size_t, int> used_;    // version of each forward whose backward is to come
};

class Counter {
 public:
  // `of_stage`: what one version of each stage's weights counts; empty: 1.
  explicit Counter(const Schedule& schedule, std::vector<std::int64_t> of_stage = {})
      : schedule_(schedule), of_stage_(std::move(of_stage)) {
    if (of_stage_.empty()) of_stage_.assign(static_cast<std::size_t>(schedule.num_stages()), 1);
  }

  Staleness count() {
    windows_.assign(static_cast<std::size_t>(schedule_.num_windows), {});
    for (int device = 0; device < schedule_.num_devices(); ++device)
      count_device(device);
    find_period();
    for (int n = 0; n < std::max(1, result_.period); ++n)
      add(windows_[windows_.size() - 1 - static_cast<std::size_t>(n)]);
    return std::move(result_);
  }
  const std::vector<std::int64_t>& held() const { return held_; }

 private:
  struct OfWindow {
    std::vector<std::int64_t> pairs_by_mismatch = {0};
    std::set<int> mismatched;  // microbatches, counted from the window's first
    int max_delay = 0;

    friend bool operator==(const OfWindow&, const OfWindow&) = default;
  };

  void find_period() {
    const auto count = static_cast<int>(windows_.size());
    for (int period = 1; 2 * period <= count; ++period)
      if (std::equal(windows_.end() - period, windows_.end(), windows_.end() - 2 * period)) {
        result_.period = period;
        return;
      }
  }

  void add(const OfWindow& window) {
    std::vector<std::int64_t>& pairs = result_.pairs_by_mismatch;
    pairs.resize(std::max(pairs.size(), window.pairs_by_mismatch.size()), 0);
    for (std::size_t n = 0; n < window.pairs_by_mismatch.size(); ++n)
      pairs[n] += window.pairs_by_mismatch[n];
    result_.mismatched_microbatches =
        std::max(result_.mismatched_microbatches, static_cast<int>(window.mismatched.size()));
    result_.max_delay = std::max(result_.max_delay, window.max_delay);
  }

  void count_device(int device) {
    const Program& program = schedule_.programs[static_cast<std::size_t>(device)];
    std::map<int, HeldStage> stages;
    std::map<int, std::multiset<int>> forwards;  // windows of the forwards to come, per stage
    std::map<int, std::set<int>> open;           // windows whose gradients are added up, per stage
    for (const int stage : schedule_.placement.held_by(device)) {
      stages.emplace(stage, HeldStage(schedule_.weights));
      forwards[stage];
    }
    const bool counts_forwards = schedule_.weights == WeightVersions::previous ||
                                 schedule_.weights == WeightVersions::predicted;
    if (counts_forwards)
      for (const Op& op : program)
        if (op.kind == OpKind::F) forwards[op.stage].insert(schedule_.window_of(op));

    std::map<int, std::int64_t> copies;
    std::int64_t sum = 0, most = 0;
    int most_open = 0;
    const auto recount = [&](int stage) {
      const std::multiset<int>& to_come = forwards[stage];
      const int window = to_come.empty() ? schedule_.num_windows : *to_come.begin();
      std::int64_t& held = copies[stage];
      const std::int64_t now =
          stages.at(stage).copies(window) * of_stage_[static_cast<std::size_t>(stage)];
      sum += now - held;
      held = now;
      most = std::max(most, sum);
    };
    for (const auto& [stage, held] : stages)
      recount(stage);
    for (std::size_t i = 0; i < program.size(); ++i) {
      const Op& op = program[i];
      const auto held = stages.find(op.stage);
      if (held == stages.end()) continue;
      const int window = schedule_.window_of(op);
      if (gives_weight_gradient(op.kind)) {
        std::set<int>& windows = open[op.stage];
        windows.insert(window);
        most_open = std::max(most_open, static_cast<int>(windows.size()));
      }
      if (op.kind == OpKind::F) {
        note_forward(held->second, op, device, i);
        if (counts_forwards) {
          std::multiset<int>& to_come = forwards[op.stage];
          to_come.erase(to_come.find(window));
        }
      } else if (gives_input_gradient(op.kind)) {
        note_backward(held->second, op, device, i);
      } else if (op.kind == OpKind::Update) {
        held->second.update();
        open[op.stage].erase(window);
      } else {
        continue;
      }
      recount(op.stage);
    }
    held_.push_back(most);
    result_.weight_copies.push_back(static_cast<int>(most));
    result_.accumulators.push_back(most_open);
  }

  void note_forward(HeldStage& held, const Op& op, int device, std::size_t position) {
    const int window = schedule_.window_of(op), version = held.version_of_forward(window);
    held.forward(schedule_.cell(op), window);
    const int delay = window - version;
    if (delay > result_.delay.updates) result_.delay = {delay, device, static_cast<int>(position)};
    int& of_window = windows_[static_cast<std::size_t>(window)].max_delay;
    of_window = std::max(of_window, delay);
  }

  void note_backward(HeldStage& held, const Op& op, int device, std::size_t position) {
    const int mismatch = held.backward(schedule_.cell(op));
    if (mismatch > result_.mismatch.updates)
      result_.mismatch = {mismatch, device, static_cast<int>(position)};
    OfWindow& window = windows_[static_cast<std::size_t>(schedule_.window_of(op))];
    const auto at = static_cast<std::size_t>(mismatch);
    if (window.pairs_by_mismatch.size() <= at) window.pairs_by_mismatch.resize(at + 1, 0);
    ++window.pairs_by_mismatch[at];
    if (mismatch > 0) window.mismatched.insert(op.microbatch % schedule_.window_size());
  }

  const Schedule& schedule_;
  std::vector<std::int64_t> of_stage_;
  Staleness result_;
  std::vector<std::int64_t> held_;
  std::vector<OfWindow> windows_;
};

Problem over_bound(const Schedule& schedule, const OffBy& worst, std::string text) {
  const Op& op = schedule.programs[static_cast<std::size_t>(worst.device)]
                                  [static_cast<std::size_t>(worst.position)];
  return {worst.device, worst.position, schedule.text(op), std::move(text)};
}

// "2 updates".
std::string updates_text(int count) {
  return fmt::format("{} update{}", count, count == 1 ? "" : "s");
}

}  // namespace

double Staleness::mismatch_share() const {
  std::int64_t all = 0;
  for (const std::int64_t pairs : pairs_by_mismatch)
    all += pairs;
  return all == 0 ? 0 : static_cast<double>(all - pairs_by_mismatch[0]) / static_cast<double>(all);
}

Staleness staleness_of(const Schedule& schedule) { return Counter(schedule).count(); }

std::vector<std::int64_t> weights_held(const Schedule& schedule,
                                       const std::vector<std::int64_t>& of_stage) {
  Counter counter(schedule, of_stage);
  counter.count();
  return counter.held();
}

std::vector<Problem> staleness_problems(const Schedule& schedule, const StalenessBounds& bounds) {
  const Staleness staleness = staleness_of(schedule);
  std::vector<Problem> problems;
  const OffBy &mismatch = staleness.mismatch, &delay = staleness.delay;
  if (bounds.max_mismatch >= 0 && mismatch.updates > bounds.max_mismatch) {
    const Op backward = schedule.programs[static_cast<std::size_t>(mismatch.device)]
                                         [static_cast<std::size_t>(mismatch.position)];
    Op forward = backward;
    forward.kind = OpKind::F;
    forward.joined = 0;
    problems.push_back(over_bound(
        schedule, mismatch,
        fmt::format("{} {} between {} and it, and the mismatch may be {} at most",
                    updates_text(mismatch.updates), mismatch.updates == 1 ? "comes" : "come",
                    schedule.text(forward), bounds.max_mismatch)));
  }
  if (bounds.max_delay >= 0 && delay.updates > bounds.max_delay) {
    const Op& forward = schedule.programs[static_cast<std::size_t>(delay.device)]
                                         [static_cast<std::size_t>(delay.position)];
    const int window = schedule.window_of(forward);
    problems.push_back(over_bound(
        schedule, delay,
        fmt::format("its weights lack {} ({}UPDATE{} comes later), and the delay may be {} at most",
                    updates_text(delay.updates), forward.stage, window - 1, bounds.max_delay)));
  }
  return problems;
}

}  // namespace sluice
