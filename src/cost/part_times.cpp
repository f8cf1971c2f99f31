#include "sluice/cost/part_times.h"

#include <algorithm>

#include "sluice/base/error.h"
#include "sluice/cost/slices.h"

namespace sluice {
PartTimes counted_part_times(const ModelShape& shape, RecomputeLevel level, std::int64_t length) {
  const auto ops = [&](const OpTerms& terms) {
    return PartTimes::Ops{terms.f.of_a_token(length), terms.i.of_a_token(length),
                          terms.w.of_a_token(length), (terms.i + terms.w).of_a_token(length)};
  };
  return {.layer = ops(block_terms(shape, level)), .embedding = {}, .head = ops(head_terms(shape))};
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
  for (const auto& [part, op] : kPartOps) {
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

}  // namespace sluice
