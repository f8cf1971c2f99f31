// How long the parts of a model take, each by itself: what a stage of any size is made of.
#pragma once

#include <functional>
#include <utility>

#include "sluice/cost/costs.h"
#include "sluice/cost/parameters.h"

namespace sluice {

struct PartTimes {
  struct Ops {
    double f = 0, i = 0, w = 0, b = 0;  // of one microbatch
  };
  Ops layer, embedding, head;
};

// Each op of a part and the same op of a stage.
inline constexpr std::pair<double PartTimes::Ops::*, double OpCosts::*> kPartOps[] = {
    {&PartTimes::Ops::f, &OpCosts::f},
    {&PartTimes::Ops::i, &OpCosts::i},
    {&PartTimes::Ops::w, &OpCosts::w},
    {&PartTimes::Ops::b, &OpCosts::b}};

// Any amount of a stage that its parts add up to.
struct Parts {
  double layer = 0, embedding = 0, head = 0;

  double of(const StageLayers& stage) const {
    return static_cast<double>(stage.end - stage.first) * layer +
           (stage.embedding ? embedding : 0) + (stage.head ? head : 0);
  }
};
// The parts of an amount that is known for each stage: a layer's is the mean of the stages between
// the first and the last, or of the first where there is none; the ends are what is left of their
// stages. Throws UserError where the stages do not say how many layers they have, or where only
// the last has any. REQUIRES: at least two stages.
Parts parts_of_stages(const Costs& profile, const std::function<double(int stage)>& amount);

// By counting multiplications and additions, which are the unit: of one token, attention over a
// sequence of `length`. The embedding has none.
PartTimes counted_part_times(const ModelShape& shape, RecomputeLevel level, std::int64_t length);

// From the seconds of stages, as parts_of_stages. One stage alone cannot tell layers from embedding
// and head: all three then share its time as `counted` says.
PartTimes measured_part_times(const Costs& profile, const PartTimes& counted);

}  // namespace sluice
