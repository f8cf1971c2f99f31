// Whether the sends and receives of a lowered schedule meet: the part of validate()'s proof that
// looks at pairs of devices.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "sluice/schedule/problem.h"
#include "sluice/schedule/schedule.h"

namespace sluice {

class Rendezvous {
 public:
  explicit Rendezvous(const Schedule& lowered);

  // The n-th send of an ordered pair of devices meets its n-th receive, and both name the same
  // tensor. False, with problems, where they do not.
  bool check_order(std::vector<Problem>& problems) const;

  // The graph of program order, match and rendezvous edges has no cycle. Every program is a chain,
  // so peeling off nodes without open edges means letting devices advance: a receive is posted when
  // it is reached, a send ends when its receive has been posted, a compute op needs the sends of
  // what it received. What cannot be peeled off is a cycle or waits for one. REQUIRES check_order()
  // and inputs before their uses.
  void check_progress(std::vector<Problem>& problems) const;

 private:
  // Sends and receives of one ordered pair of devices, as positions in the two programs.
  struct Channel {
    int from, to;
    std::vector<std::uint32_t> sends, recvs;
  };

  std::size_t channel_of(int from, int to);

  const Schedule& schedule_;
  std::vector<Channel> channels_;
  std::map<std::pair<int, int>, std::size_t> index_;
};

}  // namespace sluice
