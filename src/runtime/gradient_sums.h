// After the last weight gradient of a stage: one sum over all who computed a part of it. Tensor
// ranks add up first, so that data ranks then add up complete gradients; then the two copies of a
// stage in a schedule with two pipes; last the two ends of tied embeddings.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "sluice/comm/mesh.h"
#include "sluice/model/stage.h"
#include "sluice/optim/data_parallel.h"
#include "sluice/run/plan.h"
#include "sluice/runtime/tensor_channel.h"

namespace sluice {

using StageWeights = std::map<int, std::vector<Weight>>;  // by stage

class GradientSums {
 public:
  // All outlive it.
  struct Parts {
    const RunPlan& plan;
    const Mesh& mesh;
    TensorChannel& pipeline;
    TensorGroup& tensor;
    DataParallel& data;
    Traffic& traffic;
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
  void add_replicas();
  void add_tied();
  at::Tensor exchange(int peer, const at::Tensor& mine, TrafficClass traffic, const char* label);

  Parts parts_;
  std::set<int> begun_;
};

}  // namespace sluice
