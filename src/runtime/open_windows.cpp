#include "sluice/runtime/open_windows.h"

#include <algorithm>

#include "sluice/run/memory.h"

namespace sluice {

OpenWindows::OpenWindows(const RunPlan& plan, int device, const std::map<int, Stage*>& stages,
                         std::int64_t updates, const Predict& predict)
    : plan_(plan), stages_(stages), next_(updates) {
  const int accumulators = accumulators_of(plan, device);
  for (const auto& [number, stage] : stages) {
    StageVersions::Predict of_stage;
    if (predict)
      of_stage = [predict, number = number](std::int64_t made) { predict(number, made); };
    versions_.emplace(
        number, StageVersions(*stage, plan.schedule, accumulators, updates, std::move(of_stage)));
  }
}

void OpenWindows::open(std::int64_t window, GlobalBatch batch) {
  const auto targets = batch.num_targets;
  for (const auto& [number, stage] : stages_)
    stage->begin_window(window, targets > 0 ? 1.0 / static_cast<double>(targets) : 0);
  windows_[window].batch = std::move(batch);
}

const Microbatch& OpenWindows::microbatch(int number) const {
  const int size = plan_.endless->window_size();
  return windows_.at(number / size).batch.microbatches[static_cast<std::size_t>(number % size)];
}

void OpenWindows::before(const Op& op) {
  const std::int64_t window =
      has_window(op.kind) ? op.microbatch : op.microbatch / plan_.endless->window_size();
  stages_.at(op.stage)->use_window(window);
  versions_.at(op.stage).before(op, window, windows_.at(window).counts);
}

void OpenWindows::after(const Op& op) { versions_.at(op.stage).after(op); }

double OpenWindows::loss() const {
  double loss = 0;
  for (const auto& [number, stage] : stages_) {
    stage->use_window(next_);
    loss += stage->loss();
  }
  return loss;
}

void OpenWindows::settle() {
  for (auto& [number, versions] : versions_)
    versions.settle(next_);
}

void OpenWindows::use_predictions() {
  for (auto& [number, versions] : versions_)
    if (has(next_ + 1))
      versions.use_prediction(next_ + 1);
    else
      versions.predict(next_ + 1);
}

void OpenWindows::before_update() {
  std::int64_t bytes = 0;
  for (auto& [number, versions] : versions_) {
    versions.before_update();
    bytes += versions.weight_bytes();
  }
  peak_weight_bytes_ = std::max(peak_weight_bytes_, bytes);
}

void OpenWindows::after_past_update() {
  for (auto& [number, versions] : versions_)
    versions.after_past_update();
  ++next_;
}

WindowCounts OpenWindows::after_update() {
  for (auto& [number, versions] : versions_)
    versions.after_update();
  for (const auto& [number, stage] : stages_)
    stage->end_window(next_);
  const WindowCounts counts = windows_.extract(next_).mapped().counts;
  ++next_;
  return counts;
}

std::int64_t OpenWindows::gradient_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [number, versions] : versions_)
    bytes += versions.gradient_bytes();
  return bytes;
}

}  // namespace sluice
