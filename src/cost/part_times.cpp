#include "cost/part_times.h"

#include <algorithm>

#include "base/error.h"

namespace sluice {
namespace {

using Ops = PartTimes::Ops;
constexpr std::pair<double Ops::*, double OpCosts::*> kOps[] = {
    {&Ops::f, &OpCosts::f}, {&Ops::i, &OpCosts::i}, {&Ops::w, &OpCosts::w}, {&Ops::b, &OpCosts::b}};

}  // namespace

PartTimes counted_part_times(const ModelShape& shape, RecomputeLevel level, std::int64_t length) {
  constexpr auto kNone = RecomputeLevel::none;
  // Three products of each weight, one to an op; of attention's seven halves F does two.
  const double products = block_work(shape, kNone, 0);
  const double attention = block_work(shape, kNone, length) - products;
  const double again = block_work(shape, level, length) - block_work(shape, kNone, length);
  PartTimes times;
  times.layer.f = products / 3 + attention * 2 / 7;
  times.layer.i = products / 3 + attention * 5 / 7 + again;
  times.layer.w = products / 3;
  times.layer.b = times.layer.i + times.layer.w;
  // The head's F makes the gradient of its input, too, and its I only hands that on.
  times.head.f = times.head.w = times.head.b = head_work(shape) / 2;
  return times;
}

namespace {

void check_layers(const Costs& profile) {
  if (profile.layers.empty())
    throw user_error("costs: stages have no 'layers': measure again (sluice profile)");
}

}  // namespace

Parts parts_of_stages(const Costs& profile, const std::function<double(int stage)>& amount) {
  check_layers(profile);
  const int last = profile.num_stages() - 1;
  const auto layers = [&](int stage) {
    return static_cast<double>(profile.layers[static_cast<std::size_t>(stage)]);
  };
  double sum = 0, count = 0;
  for (int stage = 1; stage < last; ++stage) {
    sum += amount(stage);
    count += layers(stage);
  }
  if (count == 0) {
    sum = amount(0);
    count = layers(0);
  }
  if (count == 0) throw user_error("costs: no stage but the last has layers: profile more stages");
  const double layer = sum / count;
  return {.layer = layer,
          .embedding = std::max(0.0, amount(0) - layers(0) * layer),
          .head = std::max(0.0, amount(last) - layers(last) * layer)};
}

PartTimes measured_part_times(const Costs& profile, const PartTimes& counted) {
  check_layers(profile);
  PartTimes out;
  for (const auto& [part, op] : kOps) {
    const auto stage_time = [&, time = op](int stage) {
      double sum = 0;
      for (int slice = 0; slice < profile.num_slices(); ++slice)
        sum += profile.at(stage, slice).*time;
      return sum;
    };
    Parts parts;
    if (profile.num_stages() == 1) {
      parts = {counted.layer.*part, counted.embedding.*part, counted.head.*part};
      const double all =
          static_cast<double>(profile.layers[0]) * parts.layer + parts.embedding + parts.head;
      const double scale = all > 0 ? stage_time(0) / all : 0;
      parts = {parts.layer * scale, parts.embedding * scale, parts.head * scale};
    } else {
      parts = parts_of_stages(profile, stage_time);
    }
    out.layer.*part = parts.layer;
    out.embedding.*part = parts.embedding;
    out.head.*part = parts.head;
  }
  return out;
}

Costs costs_of_parts(const PartTimes& times, const StagedModel& model, const Schedule& schedule) {
  Costs costs = byte_costs(model, schedule);
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    const StageLayers layers = model.layers_of(stage);
    for (const auto& [part, op] : kOps) {
      const Parts parts = {times.layer.*part, times.embedding.*part, times.head.*part};
      const double time = parts.of(layers);
      for (int slice = 0; slice < schedule.num_slices; ++slice)
        costs.at(stage, slice).*op = time * schedule.slice_share(slice);
    }
  }
  return costs;
}

}  // namespace sluice
