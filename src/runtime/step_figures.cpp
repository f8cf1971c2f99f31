#include "sluice/runtime/step_figures.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

namespace sluice {
namespace {

constexpr const char* kLabel = "figures";

template <typename Row>
std::vector<std::vector<Row>> gather_rows(const std::vector<Row>& mine, Communicator& world) {
  static_assert(std::is_trivially_copyable_v<Row>);
  std::vector<std::vector<Row>> out;
  for (const std::vector<std::byte>& bytes :
       world.gather(0, std::as_bytes(std::span(mine)), "timelines")) {
    std::vector<Row>& rows = out.emplace_back(bytes.size() / sizeof(Row));
    if (!rows.empty()) std::memcpy(rows.data(), bytes.data(), bytes.size());
  }
  return out;
}

}  // namespace

RankFigures figures_of(const ExecutedStep& executed) {
  RankFigures figures;
  const auto& spans = executed.timeline.spans;
  if (!spans.empty()) {
    figures.start = spans.front().start;
    figures.end = spans.back().end;
  }
  figures.busy = executed.timeline.busy;
  figures.all_to_all = executed.all_to_all_s;
  figures.peak_bytes = executed.peak_stash_bytes;
  return figures;
}

WindowCounts counts_of(const std::vector<RankFigures>& ranks) {
  WindowCounts all;
  for (const RankFigures& rank : ranks) {
    for (std::size_t n = 0; n < all.by_mismatch.size(); ++n)
      all.by_mismatch[n] += rank.counts.by_mismatch[n];
    all.gradients += rank.counts.gradients;
    all.max_delay = std::max(all.max_delay, rank.counts.max_delay);
  }
  return all;
}

double bubble_of(const std::vector<RankFigures>& ranks) {
  double span = 0, ideal = 0;
  for (const RankFigures& rank : ranks) {
    span = std::max(span, rank.end - rank.start);
    ideal = std::max(ideal, rank.busy);
  }
  return span > 0 ? 1 - ideal / span : 0;
}

void FiguresOnTheirWay::post(const RankFigures& mine) {
  Step& step = steps_.emplace_back();
  const bool leads = world_.rank() == 0;
  step.figures.resize(leads ? static_cast<std::size_t>(world_.size()) : 1);
  step.figures[0] = mine;
  for (int rank = 1; leads && rank < world_.size(); ++rank)
    step.requests.push_back(world_.recv(
        rank,
        std::as_writable_bytes(std::span(step.figures).subspan(static_cast<std::size_t>(rank), 1)),
        kLabel));
  if (leads) return;
  step.requests.push_back(world_.send(0, std::as_bytes(std::span(step.figures)), kLabel));
  reap();
}

std::vector<RankFigures> FiguresOnTheirWay::take() {
  world_.wait_all(steps_.front().requests);
  std::vector<RankFigures> figures = std::move(steps_.front().figures);
  steps_.pop_front();
  return figures;
}

void FiguresOnTheirWay::finish() {
  for (Step& step : steps_)
    world_.wait_all(step.requests);
  steps_.clear();
}

void FiguresOnTheirWay::reap() {
  while (!steps_.empty() && world_.test(steps_.front().requests[0]))
    steps_.pop_front();
}

std::vector<DeviceTimeline> gather_timelines(const DeviceTimeline& mine, const Mesh& mesh) {
  if (mesh.place().data > 0 || mesh.place().tensor > 0) return {};
  auto spans = gather_rows(mine.spans, mesh.pipeline());
  auto memory = gather_rows(mine.memory, mesh.pipeline());
  double first = std::numeric_limits<double>::max();
  for (const auto& device : spans)
    if (!device.empty()) first = std::min(first, device.front().start);
  for (auto& device : spans)
    for (Span& span : device) {
      span.start -= first;
      span.end -= first;
    }
  for (auto& device : memory)
    for (MemoryPoint& point : device)
      point.time -= first;
  std::vector<DeviceTimeline> out(spans.size());
  for (std::size_t rank = 0; rank < out.size(); ++rank) {
    DeviceTimeline& device = out[rank];
    device.spans = spans[rank];
    device.memory = memory[rank];
    for (const Span& span : device.spans)
      device.busy += span.end - span.start;
    for (const MemoryPoint& point : device.memory)
      device.peak = std::max(device.peak, point.value);
  }
  return out;
}

}  // namespace sluice
