// How long the parts of a model take, each by itself: what a stage of any size is made of.
#pragma once

#include "cost/model_costs.h"

namespace sluice {

struct PartTimes {
  struct Ops {
    double f = 0, i = 0, w = 0, b = 0;  // of one microbatch
  };
  Ops layer, embedding, head;
};

// By counting multiplications and additions, which are the unit: of one token, attention over a
// sequence of `length`. The embedding has none.
PartTimes counted_part_times(const ModelShape& shape, RecomputeLevel level, std::int64_t length);

// From the seconds of stages whose numbers of layers are known: a layer is the mean of the stages
// between the first and the last, or of the first where there is none; the ends are what is left of
// their stages. Where one stage is all there is, embedding and head cannot be told from layers, and
// share its time with them as `counted` says. Throws UserError where the numbers of layers are
// missing.
PartTimes measured_part_times(const Costs& profile, const PartTimes& counted);

// The ops of a schedule's stages, made of these parts: times, and the bytes that they keep and
// send. A slice takes its share.
Costs costs_of_parts(const PartTimes& times, const StagedModel& model, const Schedule& schedule);

}  // namespace sluice
