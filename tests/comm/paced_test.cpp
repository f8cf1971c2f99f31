#include "sluice/comm/paced.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "comm/over_threads.h"

namespace sluice {

namespace {

using Clock = PacedLinks::Clock;
using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr LinkSpeed kSlow = {.latency_s = 0.01, .bytes_per_s = 1e5};

PacedLinks::SpeedOf always(const LinkSpeed& speed) {
  return [speed](int, int) { return speed; };
}

class Paced : public testing::TestWithParam<test::CommCase> {};

// Every program gives the results and the errors that it gives without.
TEST_P(Paced, Case) {
  PacedLinks links(always({.latency_s = 1e-4, .bytes_per_s = 1e9}));
  test::expect_case(GetParam(), [&](Communicator& threads, const CommOptions&, const auto& body) {
    body(*with_pace(threads, links));
  });
}

INSTANTIATE_TEST_SUITE_P(Comm, Paced, testing::ValuesIn(test::all_cases()),
                         [](const auto& c) { return c.param.name; });

// Runs body(world) on paced threads and returns how long each rank took.
std::vector<Clock::duration> durations(int num_ranks, const PacedLinks::SpeedOf& speed,
                                       const std::function<void(Communicator&)>& body) {
  PacedLinks links(speed);
  std::vector<Clock::duration> taken(static_cast<std::size_t>(num_ranks));
  run_threads(num_ranks, {}, [&](Communicator& threads) {
    const auto world = with_pace(threads, links);
    const auto start = Clock::now();
    threads.barrier();  // so nobody sends before this rank's start
    body(*world);
    taken[static_cast<std::size_t>(threads.rank())] = Clock::now() - start;
  });
  return taken;
}

// Rank 0 of `ranks` sends rank 1 so many messages.
void send_one_way(Communicator& ranks, std::size_t bytes, int count = 1) {
  std::vector<std::vector<std::byte>> buffers(static_cast<std::size_t>(count));
  std::vector<Request> requests;
  for (std::vector<std::byte>& buffer : buffers) {
    buffer.assign(bytes, std::byte(ranks.rank() == 0 ? 7 : 0));
    if (ranks.rank() == 0)
      requests.push_back(ranks.send(1, buffer, "one way"));
    else if (ranks.rank() == 1)
      requests.push_back(ranks.recv(0, buffer, "one way"));
  }
  ranks.wait_all(requests);
  if (ranks.rank() > 1) return;
  for (const std::vector<std::byte>& buffer : buffers)
    EXPECT_EQ(buffer, std::vector<std::byte>(bytes, std::byte(7)));
}

TEST(PacedLinks, AMessageTakesItsLatencyAndItsBytes) {
  const auto taken =
      durations(2, always(kSlow), [](Communicator& world) { send_one_way(world, 5'000); });
  EXPECT_GE(taken[1], milliseconds(60));
}

TEST(PacedLinks, MessagesOfOneLinkFollowOneAnother) {
  const auto taken =
      durations(2, always(kSlow), [](Communicator& world) { send_one_way(world, 2'000, 3); });
  EXPECT_GE(taken[1], milliseconds(70));  // three times 20, and the latency once
}

TEST(PacedLinks, AMessageDoesNotCountAsFinishedBeforeItsTime) {
  const auto taken = durations(2, always(kSlow), [](Communicator& world) {
    std::vector<std::byte> bytes(5'000);
    Request request =
        world.rank() == 0 ? world.send(1, bytes, "tested") : world.recv(0, bytes, "tested");
    while (!world.test(request))
      std::this_thread::yield();
  });
  EXPECT_GE(taken[1], milliseconds(60));
}

TEST(PacedLinks, CollectivesTakeTheirTime) {
  const auto broadcast = durations(3, always(kSlow), [](Communicator& world) {
    std::vector<std::byte> bytes(3'000, std::byte(world.rank() == 2 ? 7 : 0));
    world.broadcast(2, bytes);
    EXPECT_EQ(bytes, std::vector<std::byte>(3'000, std::byte(7)));
  });
  EXPECT_GE(std::min(broadcast[0], broadcast[1]), milliseconds(40));
  const auto barrier = durations(3, always(kSlow), [](Communicator& world) { world.barrier(); });
  EXPECT_GE(*std::min_element(barrier.begin(), barrier.end()), milliseconds(10));
}

// Ranks 3 and 2 are ranks 0 and 1 of the group, and only their link is slow.
TEST(PacedLinks, GroupsArePacedByTheirWorldRanks) {
  const auto only_theirs = [](int from, int to) {
    return from == 3 && to == 2 ? kSlow : LinkSpeed{};
  };
  const auto taken = durations(4, only_theirs, [](Communicator& world) {
    const auto group = world.group(std::vector<int>{3, 2});
    if (group) send_one_way(*group, 5'000);
  });
  EXPECT_GE(taken[2], milliseconds(60));
}

TEST(PacedLinks, AGroupSharesTheLinkOfItsRanksAndSoDoLanes) {
  const auto taken = durations(2, always(kSlow), [](Communicator& world) {
    const auto group = world.group(std::vector<int>{0, 1});
    std::vector<std::byte> of_world(2'000), of_group(2'000), of_lane(2'000);
    std::vector<Request> requests;
    const auto post = [&](Communicator& ranks, Lane lane, std::span<std::byte> bytes) {
      requests.push_back(ranks.rank() == 0 ? ranks.post_send(lane, 1, bytes, "shared")
                                           : ranks.post_recv(lane, 0, bytes, "shared"));
    };
    post(world, Lane::messages, of_world);
    post(*group, Lane::messages, of_group);
    post(*group, Lane::collectives, of_lane);
    world.wait_all(requests);
  });
  EXPECT_GE(taken[1], milliseconds(70));
}

milliseconds after(Clock::time_point start, Clock::time_point time) {
  return duration_cast<milliseconds>(time - start + std::chrono::microseconds(500));
}

TEST(PacedLinks, TwoLinksCarryAtTheSameTimeAndOneLinkDoesNot) {
  PacedLinks links(always(kSlow));
  const Clock::time_point start;
  EXPECT_EQ(after(start, links.arrival(0, 1, 5'000, start)), milliseconds(60));
  EXPECT_EQ(after(start, links.arrival(0, 2, 5'000, start)), milliseconds(60));
  EXPECT_EQ(after(start, links.arrival(1, 0, 5'000, start)), milliseconds(60));
  EXPECT_EQ(after(start, links.arrival(0, 1, 1'000, start)), milliseconds(70));
  // A link that was idle begins when the message is sent.
  const auto later = start + milliseconds(200);
  EXPECT_EQ(after(start, links.arrival(0, 1, 1'000, later)), milliseconds(220));
  EXPECT_EQ(links.arrival(1, 1, 5'000, start), start);
}

TEST(PacedLinks, NodesAreRunsOfRanks) {
  const auto speed = links_of_nodes(4, {.latency_s = 1}, {.latency_s = 9});
  EXPECT_EQ(speed(0, 3).latency_s, 1);
  EXPECT_EQ(speed(7, 4).latency_s, 1);
  EXPECT_EQ(speed(3, 4).latency_s, 9);
  EXPECT_EQ(speed(5, 0).latency_s, 9);
}

// Else the process would end: a rank has to come back soon after a failure.
TEST(PacedLinks, AFailureWakesWhoWaitsForALongMessage) {
  PacedLinks links(always({.latency_s = 30}));
  EXPECT_ANY_THROW(run_threads(2, {}, [&](Communicator& threads) {
    const auto world = with_pace(threads, links);
    std::vector<std::byte> bytes(4);
    if (world->rank() == 1) {
      Request request = world->recv(0, bytes, "late");
      world->wait(request);
    } else {
      Request request = world->send(1, bytes, "late");
      world->wait(request);
      throw UserError("stop");
    }
  }));
}

}  // namespace

}  // namespace sluice
