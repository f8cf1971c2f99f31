// What the devices that hold copies of a stage (run/copies.h) send each other in a step, each rank
// to those of its own place on the other axes: the rows that it updates.
#pragma once

#include <map>
#include <vector>

#include "sluice/comm/mesh.h"
#include "sluice/comm/tensors/group.h"
#include "sluice/optim/optimizer.h"
#include "sluice/run/copies.h"
#include "sluice/runtime/tensor_channel.h"

namespace sluice {

using StageWeights = std::map<int, std::vector<Weight>>;  // by stage

class StageCopies {
 public:
  // All outlive it; `weights` are this rank's.
  StageCopies(const RunPlan& plan, TensorChannel& pipeline, Traffic& traffic,
              const StageWeights& weights)
      : plan_(plan), pipeline_(pipeline), traffic_(traffic), weights_(weights) {}

  // Adds up the gradients of all copies, in the order of the holders, where this rank updates the
  // stage; then both ends of tied embeddings. Every rank calls it. Blocks.
  void add_gradients();
  // The owners' weights to all other holders. Every rank calls it. Blocks.
  void share_values();

 private:
  int device() const { return pipeline_.rank(); }
  void add_copies(int stage, const std::vector<Weight>& weights);
  void add_tied();
  // Sends `mine` to some and gives what others sent, in their order.
  std::vector<at::Tensor> exchange(const CopyPeers& peers, const at::Tensor& mine,
                                   TrafficClass traffic, const char* label);

  const RunPlan& plan_;
  TensorChannel& pipeline_;
  Traffic& traffic_;
  const StageWeights& weights_;
};

}  // namespace sluice
