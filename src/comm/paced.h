// A Communicator whose messages take as long as on links of a given speed: so ranks that are
// threads of one machine behave as if they were on several nodes. Benchmarks put it between a
// program and its real Communicator. What arrives is the same, only later.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "sluice/comm/communicator.h"

namespace sluice {

struct LinkSpeed {
  double latency_s = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();
};

// The links between the ranks of a world, one for each ordered pair, and what is on its way there.
// All ranks share one object, so they are threads of one process.
class PacedLinks {
 public:
  using Clock = std::chrono::steady_clock;
  // Of the link between two different world ranks.
  using SpeedOf = std::function<LinkSpeed(int from, int to)>;

  explicit PacedLinks(SpeedOf speed) : speed_(std::move(speed)) {}

  // When a message that is sent at `now` will have arrived. A link carries one message at a time,
  // in the order of these calls, for bytes / bytes_per_s; each arrives latency_s after that. A rank
  // has no link to itself: such a message is there at once.
  Clock::time_point arrival(int from, int to, std::size_t bytes, Clock::time_point now);

 private:
  friend class PacedCommunicator;
  friend class PacedReceive;

  // Messages of one lane of one communicator from one rank to another: these keep their order.
  struct Channel {
    int group = 0;  // 0: the world
    Lane lane = Lane::messages;
    int from = 0, to = 0;
    auto operator<=>(const Channel&) const = default;
  };
  struct OnTheWay {
    std::uint64_t num_sends = 0, num_receives = 0;
    std::map<std::uint64_t, Clock::time_point> arrivals;  // of sends that nobody has waited for
  };

  void send(const Channel& channel, std::size_t bytes);
  std::uint64_t next_receive(const Channel& channel);
  // REQUIRES: that message was sent.
  Clock::time_point arrival_of(const Channel& channel, std::uint64_t number);
  void forget(const Channel& channel, std::uint64_t number);

  const SpeedOf speed_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, Clock::time_point> free_;  // when each link has carried all so far
  std::map<Channel, OnTheWay> on_the_way_;
};

// Links of ranks that lie node by node, each with so many of them.
PacedLinks::SpeedOf links_of_nodes(int ranks_per_node, const LinkSpeed& within,
                                   const LinkSpeed& between);

// `inner` with a receive that finishes only when its message has arrived over the link. A send
// finishes as before, when its receive has taken the bytes. Waiting sleeps. Wrap only the world;
// groups made from it are then paced, too, by their world ranks, and so are collectives, which are
// made of sends and receives. The agreement of a new group's members is not.
// REQUIRES: every rank wraps its own with the same `links`; `inner` and `links` outlive it. The
// deadline of a wait does not count the sleep, so it has to be longer than any message takes.
std::unique_ptr<Communicator> with_pace(Communicator& inner, PacedLinks& links);

}  // namespace sluice
