// How long the ops of a schedule take: read off measured steps, gathered from all ranks.
#pragma once

#include <deque>
#include <map>

#include "sluice/comm/communicator.h"
#include "sluice/cost/costs.h"
#include "sluice/trace/timeline.h"

namespace sluice {

class OpTimings {
 public:
  // One rank's ops of one step. Of a long run the latest steps count.
  void add(const DeviceTimeline& step);
  // What the optimizer took in a step, by stage that this rank updates.
  void add_updates(const std::map<int, double>& seconds);

  // Writes the seconds of every rank's ops into `costs`, on every rank: of each kind, stage and
  // slice the mean over the microbatches of a step, and of the steps the median, so that a step
  // that was disturbed does not count. What was not measured follows from what was (B = I + W; I
  // takes all of a B) or is 0. Of updates those of each stage's owner. Collective.
  void gather_into(Costs& costs, Communicator& world) const;

 private:
  struct Key {
    int stage, slice;
    OpKind kind;
    auto operator<=>(const Key&) const = default;
  };
  void add(const Key& key, double seconds);

  std::map<Key, std::deque<double>> steps_;  // means
};

}  // namespace sluice
