// The norm of all gradients. It has the same bits however the weights are spread over ranks:
// squares are summed in fp64 over the row blocks of each weight (cost/parameters.h), and these sums
// are added in one order: stages ascending, weights as in their stage, tensor ranks ascending,
// blocks ascending.
//
// The running sum travels from stage to stage, together with the loss and all else that ranks must
// agree on after a step. The last stage sends the totals to every rank. No rank has to wait for
// them before it continues.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <vector>

#include "sluice/comm/mesh.h"
#include "sluice/optim/weight.h"
#include "sluice/schedule/placement.h"

namespace sluice {

// Sums of squares of the rows that this rank updates: kRowBlocks of them for every weight, zero for
// blocks of other ranks and for weights that another rank counts.
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

// The totals of a device over its data ranks and tensor ranks. Each of them calls it with its own
// weights, loss and request to stop, and gets the same result. REQUIRES: tensor ranks have the same
// loss.
DeviceTotals device_totals(const std::map<int, std::vector<Weight>>& stages, double loss, bool stop,
                           const Mesh& mesh);

// Passes the running sum through the pipeline. Every rank begins and finishes the same sums.
class TotalsChain {
 public:
  // All outlive it; rank r of `pipeline` is device r.
  TotalsChain(const Placement& placement, Communicator& pipeline);

  // Does not block.
  void begin(DeviceTotals mine);
  // Passes on what has arrived in the meantime. Does not block.
  void poll() { advance(false); }
  // Blocks until the totals are known.
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
  std::size_t next_ = 0;  // index in stages_ of the next one to add
  StepTotals running_;
  std::list<Message> arriving_;  // in the order they come
  std::list<Message> sent_;
};

}  // namespace sluice
