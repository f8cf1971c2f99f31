// The norm of all gradients, the same to the last bit however the weights are spread: sums of
// squares over the row blocks of each weight (cost/parameters.h), in fp64, added in one order:
// stages ascending, weights in the order of their stage, tensor ranks ascending, blocks ascending.
//
// The running sum travels through the pipeline from stage to stage, together with the loss and
// whatever else all ranks must agree on after a step; the last stage knows the totals and tells
// everybody. Nobody has to wait for that before it goes on.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <vector>

#include "comm/mesh.h"
#include "optim/optimizer.h"
#include "schedule/placement.h"

namespace sluice {

// Of the rows that a rank updates: kRowBlocks for every weight, zero for blocks that others have
// and for weights that are not counted here.
std::vector<double> block_sums(std::span<const Weight> weights);

// What all ranks know after a step.
struct StepTotals {
  double squares = 0;     // of all gradients
  double loss = 0;        // of all microbatches
  std::int64_t stop = 0;  // how many ranks were asked to stop

  double gradient_norm() const;
  bool finite() const;
};

// What one device of the pipeline adds to them.
struct DeviceTotals {
  std::map<int, std::vector<double>> squares;  // by stage, in the order to add them in
  double loss = 0;
  std::int64_t stop = 0;
};

// A device's totals, over its data ranks and tensor ranks, each of which calls it with its own
// weights, loss and wish to stop, and gets the same. REQUIRES: tensor ranks have the same loss.
DeviceTotals device_totals(const std::map<int, std::vector<Weight>>& stages, double loss, bool stop,
                           const Mesh& mesh);

// The running sum's way through the pipeline. Every rank begins and finishes the same ones.
class TotalsChain {
 public:
  // All outlive it; rank r of `pipeline` is device r.
  TotalsChain(const Placement& placement, Communicator& pipeline);

  // Does not block.
  void begin(DeviceTotals mine);
  // Hands on what has come in the meantime. Does not block.
  void poll() { advance(false); }
  // Blocks for all others.
  StepTotals finish();

 private:
  struct Message {
    StepTotals totals;
    Request request;
  };
  bool from_elsewhere(int stage) const;
  void advance(bool blocking);
  void hand_on(int stage);
  void post_send(int device);
  void post_recv(int device);

  const Placement& placement_;
  Communicator& pipeline_;
  std::vector<int> stages_;  // of this device, ascending
  DeviceTotals mine_;
  std::size_t next_ = 0;  // of the stages: to be added
  StepTotals running_;
  std::list<Message> arriving_;  // in the order they come
  std::list<Message> sent_;
};

}  // namespace sluice
