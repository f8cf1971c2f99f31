// After the last weight gradient of a stage: one sum over all who computed a part of it. Tensor
// ranks add up first, so that data ranks then add up complete gradients; then the copies of a stage
// on several devices; last the two ends of tied embeddings.
#pragma once

#include <map>
#include <set>

#include "sluice/model/stage.h"
#include "sluice/optim/data_parallel.h"
#include "sluice/runtime/stage_copies.h"

namespace sluice {

class GradientSums {
 public:
  // All outlive it.
  struct Parts {
    TensorGroup& tensor;
    DataParallel& data;
    StageCopies& copies;
    const std::map<int, Stage*>& stages;  // this rank's
    const StageWeights& weights;
  };
  explicit GradientSums(const Parts& parts) : parts_(parts) {}

  // Starts the sums of one stage and does not wait for data ranks. Every rank begins the same.
  void begin(int stage);
  // Begins what was not begun, and waits for all. Then the rows that this rank updates hold the
  // sums.
  void finish();

 private:
  Parts parts_;
  std::set<int> begun_;
};

}  // namespace sluice
