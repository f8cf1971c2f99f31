#include "sluice/runtime/gradient_sums.h"

namespace sluice {

void GradientSums::begin(int stage) {
  sum_shared_gradients(parts_.stages.at(stage)->kept(), parts_.tensor);
  parts_.data.begin_sums(parts_.weights.at(stage));
  begun_.insert(stage);
}

void GradientSums::finish() {
  for (const auto& [number, stage] : parts_.stages)
    if (!begun_.contains(number)) begin(number);
  begun_.clear();
  parts_.data.finish_sums();
  parts_.copies.add_gradients();
}

}  // namespace sluice
