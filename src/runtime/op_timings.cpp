#include "sluice/runtime/op_timings.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace sluice {
namespace {

constexpr std::size_t kMaxSteps = 101;

// Of one (kind, stage, slice) on one rank, as it travels.
struct Row {
  std::int32_t kind, stage, slice;
  double seconds;
};

double median(std::deque<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Mean {
  double sum = 0;
  int count = 0;
  double value() const { return count > 0 ? sum / count : 0; }
};

}  // namespace

void OpTimings::add(const DeviceTimeline& step) {
  std::map<Key, Mean> means;
  for (const Span& span : step.spans) {
    Mean& mean = means[{span.op.stage, span.op.slice, span.op.kind}];
    mean.sum += span.end - span.start;
    ++mean.count;
  }
  for (const auto& [key, mean] : means)
    add(key, mean.value());
}

void OpTimings::add_updates(const std::map<int, double>& seconds) {
  for (const auto& [stage, taken] : seconds)
    add({stage, 0, OpKind::Update}, taken);
}

void OpTimings::add(const Key& key, double seconds) {
  std::deque<double>& steps = steps_[key];
  steps.push_back(seconds);
  if (steps.size() > kMaxSteps) steps.pop_front();
}

void OpTimings::gather_into(Costs& costs, Communicator& world) const {
  std::vector<Row> mine;
  for (const auto& [key, steps] : steps_)
    mine.push_back({static_cast<int>(key.kind), key.stage, key.slice, median(steps)});

  // A stage of two pipes runs on two ranks: their mean.
  std::vector<std::array<Mean, 4>> all(
      static_cast<std::size_t>(costs.num_stages() * costs.num_slices()));
  std::vector<Mean> updates(static_cast<std::size_t>(costs.num_stages()));
  for (const auto& bytes : world.gather(0, std::as_bytes(std::span(mine)), "op times"))
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(Row)) {
      Row row;
      std::memcpy(&row, bytes.data() + at, sizeof row);
      if (row.kind == static_cast<int>(OpKind::Update)) {
        Mean& update = updates[static_cast<std::size_t>(row.stage)];
        update.sum += row.seconds;
        ++update.count;
        continue;
      }
      Mean& mean = all[static_cast<std::size_t>(row.stage * costs.num_slices() + row.slice)]
                      [static_cast<std::size_t>(row.kind)];
      mean.sum += row.seconds;
      ++mean.count;
    }
  world.broadcast(0, std::as_writable_bytes(std::span(all)), "op times");
  world.broadcast(0, std::as_writable_bytes(std::span(updates)), "update times");
  if (std::any_of(updates.begin(), updates.end(),
                  [](const Mean& mean) { return mean.count > 0; })) {
    costs.update.clear();
    for (const Mean& update : updates)
      costs.update.push_back(update.value());
  }

  for (int stage = 0; stage < costs.num_stages(); ++stage)
    for (int slice = 0; slice < costs.num_slices(); ++slice) {
      const auto& [f, i, w, b] = all[static_cast<std::size_t>(stage * costs.num_slices() + slice)];
      OpCosts& op = costs.at(stage, slice);
      op.f = f.value();
      op.i = i.count > 0 ? i.value() : b.value();
      op.w = w.value();
      op.b = b.count > 0 ? b.value() : op.i + op.w;
    }
}

}  // namespace sluice
