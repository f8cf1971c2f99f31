#include "sluice/plan/redeal.h"

#include <algorithm>
#include <numeric>

#include "sluice/base/error.h"
#include "sluice/cost/part_times.h"
#include "sluice/plan/partition.h"

namespace sluice {
namespace {

// What adds up over the parts of a stage.
constexpr double OpCosts::*kAdded[] = {&OpCosts::f,  &OpCosts::i,          &OpCosts::w,
                                       &OpCosts::b,  &OpCosts::after_f,    &OpCosts::after_i,
                                       &OpCosts::kv, &OpCosts::kv_gradient};

void check(const Costs& profile, const Schedule& schedule) {
  if (profile.num_stages() == 1)
    throw user_error(
        "costs: one stage cannot tell layers from embedding and head: profile at least two");
  if (profile.num_slices() != schedule.num_slices)
    throw user_error(
        "costs: measured with {} slices of a microbatch, but {} has {}: profile the same slices",
        profile.num_slices(), schedule.name, schedule.num_slices);
  if (schedule.has(OpKind::I)) check_split(profile, schedule.name);
  if (!profile.contention.empty())
    check_contention(profile.contention, schedule.num_devices(), "costs: contention");
}

StageLayers layers_of(const std::vector<std::int64_t>& dealt, int stage) {
  StageLayers layers;
  layers.end = dealt[static_cast<std::size_t>(stage)];
  layers.embedding = stage == 0;
  layers.head = stage + 1 == static_cast<int>(dealt.size());
  return layers;
}

}  // namespace

Costs redeal(const Costs& profile, const Schedule& schedule) {
  check(profile, schedule);
  const bool split = schedule.has(OpKind::I);
  const Parts work = parts_of_stages(profile, [&](int stage) {
    double sum = 0;
    for (int slice = 0; slice < profile.num_slices(); ++slice) {
      const OpCosts& op = profile.at(stage, slice);
      sum += op.f + (split ? op.i + op.w : op.b);
    }
    return sum;
  });
  PartitionQuery query;
  query.placement = schedule.placement;
  query.layers = std::accumulate(profile.layers.begin(), profile.layers.end(), std::int64_t{0});
  query.work = {work.layer, work.embedding, work.head};

  Costs costs(schedule.num_stages(), schedule.num_slices);
  costs.layers = best_partition(query);
  costs.measured = profile.measured;
  costs.measured_on = profile.measured_on;
  costs.slice_sizes = profile.slice_sizes;
  costs.unsplit_stage = profile.unsplit_stage;
  costs.default_link = profile.default_link;
  costs.data_link = profile.data_link;
  costs.overlap = profile.overlap;
  costs.contention = profile.contention;
  const int last = schedule.num_stages() - 1;
  for (int slice = 0; slice < schedule.num_slices; ++slice) {
    for (const auto field : kAdded) {
      const Parts parts =
          parts_of_stages(profile, [&](int stage) { return profile.at(stage, slice).*field; });
      for (int stage = 0; stage <= last; ++stage)
        costs.at(stage, slice).*field = parts.of(layers_of(costs.layers, stage));
    }
    // Every boundary between stages is the same tensor.
    double forward = 0, backward = 0;
    for (int stage = 0; stage < profile.num_stages(); ++stage) {
      forward = std::max(forward, profile.at(stage, slice).sent_forward);
      backward = std::max(backward, profile.at(stage, slice).sent_backward);
    }
    for (int stage = 0; stage <= last; ++stage) {
      costs.at(stage, slice).sent_forward = stage < last ? forward : 0;
      costs.at(stage, slice).sent_backward = stage > 0 ? backward : 0;
    }
  }
  if (!profile.reduce.empty()) {
    const Parts parts = parts_of_stages(profile, [&](int s) { return profile.reduce_bytes(s); });
    for (int stage = 0; stage <= last; ++stage)
      costs.reduce.push_back(parts.of(layers_of(costs.layers, stage)));
  }
  if (!profile.update.empty()) {
    const Parts parts = parts_of_stages(profile, [&](int s) { return profile.update_time(s); });
    for (int stage = 0; stage <= last; ++stage)
      costs.update.push_back(parts.of(layers_of(costs.layers, stage)));
  }
  return costs;
}

GeneratorOptions with_profile(const Generator& generator, GeneratorOptions options,
                              const Costs& profile) {
  if (!generator.knobs.times) return options;
  // The first search is for the placement.
  const SearchTimes times = search_times(redeal(profile, generate_schedule(generator, options)));
  options.stage_times = times.stages;
  options.comm = times.comm;
  return options;
}

}  // namespace sluice
