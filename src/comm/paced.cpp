#include "sluice/comm/paced.h"

#include <algorithm>
#include <thread>

#include "sluice/base/error.h"

namespace sluice {

namespace {

using Clock = PacedLinks::Clock;

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Clock::time_point PacedLinks::arrival(int from, int to, std::size_t bytes, Clock::time_point now) {
  if (from == to) return now;
  const LinkSpeed speed = speed_(from, to);
  SLUICE_CHECK(speed.latency_s >= 0 && speed.bytes_per_s > 0,
               "a link with a latency of {} s and {} bytes per second", speed.latency_s,
               speed.bytes_per_s);
  const std::lock_guard lock(mutex_);
  Clock::time_point& free = free_.try_emplace({from, to}, now).first->second;
  free = std::max(free, now) + duration_of(static_cast<double>(bytes) / speed.bytes_per_s);
  return free + duration_of(speed.latency_s);
}

void PacedLinks::send(const Channel& channel, std::size_t bytes) {
  const Clock::time_point time = arrival(channel.from, channel.to, bytes, Clock::now());
  const std::lock_guard lock(mutex_);
  OnTheWay& messages = on_the_way_[channel];
  messages.arrivals.emplace(messages.num_sends++, time);
}

std::uint64_t PacedLinks::next_receive(const Channel& channel) {
  const std::lock_guard lock(mutex_);
  return on_the_way_[channel].num_receives++;
}

Clock::time_point PacedLinks::arrival_of(const Channel& channel, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  return on_the_way_.at(channel).arrivals.at(number);
}

void PacedLinks::forget(const Channel& channel, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  on_the_way_.at(channel).arrivals.erase(number);
}

// A receive whose bytes may be there before their time. The n-th receive of a channel is that of
// its n-th send.
class PacedReceive : public Transfer {
 public:
  PacedReceive(Communicator& inner, PacedLinks& links, const PacedLinks::Channel& channel,
               Request request)
      : inner_(inner),
        links_(links),
        channel_(channel),
        number_(links.next_receive(channel)),
        request_(std::move(request)) {}
  ~PacedReceive() override { links_.forget(channel_, number_); }

  void wait() override {
    // Often enough to hear that the run has failed.
    constexpr auto kNap = std::chrono::milliseconds(50);
    inner_.wait(request_);
    const Clock::time_point arrival = links_.arrival_of(channel_, number_);
    for (auto now = Clock::now(); now < arrival; now = Clock::now()) {
      std::this_thread::sleep_until(std::min(arrival, now + kNap));
      inner_.throw_if_failed();
    }
  }

  bool test() override {
    return inner_.test(request_) && Clock::now() >= links_.arrival_of(channel_, number_);
  }

 private:
  Communicator& inner_;
  PacedLinks& links_;
  const PacedLinks::Channel channel_;
  const std::uint64_t number_;
  Request request_;
};

class PacedCommunicator : public Communicator {
 public:
  PacedCommunicator(Communicator& inner, std::unique_ptr<Communicator> owned, PacedLinks& links,
                    int group)
      : Communicator(inner.rank(), inner.world_ranks()),
        inner_(inner),
        owned_(std::move(owned)),
        links_(links),
        group_(group) {}

  bool moves_device_memory() const override { return inner_.moves_device_memory(); }

  Request post_send(Lane lane, int to, std::span<const std::byte> bytes,
                    std::string_view label) override {
    // Before the receive can be finished.
    links_.send({group_, lane, world_rank(rank()), world_rank(to)}, bytes.size());
    return inner_.post_send(lane, to, bytes, label);
  }

  Request post_recv(Lane lane, int from, std::span<std::byte> bytes,
                    std::string_view label) override {
    return Request(std::make_unique<PacedReceive>(
        inner_, links_, PacedLinks::Channel{group_, lane, world_rank(from), world_rank(rank())},
        inner_.post_recv(lane, from, bytes, label)));
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    const int number = ++num_groups_;
    std::unique_ptr<Communicator> made = inner_.group(ranks);
    if (made == nullptr) return nullptr;
    Communicator& group = *made;
    return std::make_unique<PacedCommunicator>(group, std::move(made), links_, number);
  }

  void fail(const std::exception_ptr& cause) override { inner_.fail(cause); }
  void throw_if_failed() override { inner_.throw_if_failed(); }

 private:
  Communicator& inner_;
  std::unique_ptr<Communicator> owned_;  // inner_, where this is a group
  PacedLinks& links_;
  const int group_;
  int num_groups_ = 0;
};

PacedLinks::SpeedOf links_of_nodes(int ranks_per_node, const LinkSpeed& within,
                                   const LinkSpeed& between) {
  SLUICE_CHECK(ranks_per_node >= 1, "{} ranks per node", ranks_per_node);
  return [=](int from, int to) {
    return from / ranks_per_node == to / ranks_per_node ? within : between;
  };
}

std::unique_ptr<Communicator> with_pace(Communicator& inner, PacedLinks& links) {
  return std::make_unique<PacedCommunicator>(inner, nullptr, links, 0);
}

}  // namespace sluice
