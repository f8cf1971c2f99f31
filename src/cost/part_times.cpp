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

PartTimes measured_part_times(const Costs& profile, const PartTimes& counted) {
  if (profile.layers.empty())
    throw user_error(
        "costs: stages have no 'layers': a profile of this version has them; measure it again "
        "(sluice profile)");
  const int last = profile.num_stages() - 1;
  PartTimes out;
  for (const auto& [part, op] : kOps) {
    const auto stage_time = [&, time = op](int stage) {
      double sum = 0;
      for (int slice = 0; slice < profile.num_slices(); ++slice)
        sum += profile.at(stage, slice).*time;
      return sum;
    };
    const auto layers = [&](int stage) {
      return static_cast<double>(profile.layers[static_cast<std::size_t>(stage)]);
    };
    if (last == 0) {
      const double all =
          layers(0) * counted.layer.*part + counted.embedding.*part + counted.head.*part;
      const double scale = all > 0 ? stage_time(0) / all : 0;
      out.layer.*part = counted.layer.*part * scale;
      out.embedding.*part = counted.embedding.*part * scale;
      out.head.*part = counted.head.*part * scale;
      continue;
    }
    double time = 0, count = 0;
    for (int stage = 1; stage < last; ++stage) {
      time += stage_time(stage);
      count += layers(stage);
    }
    if (count == 0) {
      time = stage_time(0);
      count = layers(0);
    }
    if (count == 0)
      throw user_error("costs: no stage but the last has layers: profile more stages");
    out.layer.*part = time / count;
    out.embedding.*part = std::max(0.0, stage_time(0) - layers(0) * out.layer.*part);
    out.head.*part = std::max(0.0, stage_time(last) - layers(last) * out.layer.*part);
  }
  return out;
}

Costs costs_of_parts(const PartTimes& times, const StagedModel& model, const Schedule& schedule) {
  Costs costs = byte_costs(model, schedule);
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    const StageLayers layers = model.layers_of(stage);
    for (const auto& [part, op] : kOps) {
      double time = static_cast<double>(layers.end - layers.first) * times.layer.*part;
      if (layers.embedding) time += times.embedding.*part;
      if (layers.head) time += times.head.*part;
      for (int slice = 0; slice < schedule.num_slices; ++slice)
        costs.at(stage, slice).*op = time * schedule.slice_share(slice);
    }
  }
  return costs;
}

}  // namespace sluice
