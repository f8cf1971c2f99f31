#include "comm/cases.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <thread>

#include "sluice/base/error.h"
#include "sluice/comm/fault.h"

namespace sluice::test {

namespace {

using std::chrono::milliseconds;

template <typename T>
std::span<std::byte> raw(T& values) {
  return std::as_writable_bytes(std::span(values));
}

// Numbers that tell which message they are.
std::vector<std::uint32_t> message(int from, int to, int number, std::size_t count) {
  std::vector<std::uint32_t> values(count);
  const int first = from * 1'000'000 + to * 100'000 + number * 17;
  std::iota(values.begin(), values.end(), static_cast<std::uint32_t>(first));
  return values;
}

void check_equal(const std::vector<std::uint32_t>& got, const std::vector<std::uint32_t>& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    SLUICE_CHECK(got[i] == wanted[i], "element {}: {} instead of {}", i, got[i], wanted[i]);
  }
}

// Sizes from nothing to well past every eager limit.
constexpr std::size_t kCounts[] = {1, 0, 3, 1000, 50'000, 7, 20'000};

void ping_pong_keeps_the_order(Communicator& world) {
  const int peer = 1 - world.rank();
  for (int i = 0; i < 200; ++i) {
    const std::size_t count = kCounts[static_cast<std::size_t>(i) % std::size(kCounts)];
    std::vector<std::uint32_t> out = message(world.rank(), peer, i, count);
    std::vector<std::uint32_t> in(count);
    Request request = world.rank() == i % 2 ? world.send(peer, raw(out), "ping")
                                            : world.recv(peer, raw(in), "ping");
    world.wait(request);
    if (world.rank() != i % 2) check_equal(in, message(peer, world.rank(), i, count));
  }
}

void many_in_flight_arrive_in_order(Communicator& world) {
  constexpr int kNumMessages = 300;
  std::vector<std::vector<std::uint32_t>> buffers;
  std::vector<Request> requests;
  for (int i = 0; i < kNumMessages; ++i) {
    const std::size_t count = kCounts[static_cast<std::size_t>(i) % std::size(kCounts)];
    buffers.push_back(world.rank() == 0 ? message(0, 1, i, count)
                                        : std::vector<std::uint32_t>(count));
    requests.push_back(world.rank() == 0 ? world.send(1, raw(buffers.back()), "burst")
                                         : world.recv(0, raw(buffers.back()), "burst"));
  }
  // Waited for from the last to the first: the order of the waits does not matter.
  for (std::size_t i = requests.size(); i-- > 0;)
    world.wait(requests[i]);
  for (int i = 0; i < kNumMessages; ++i) {
    const std::vector<std::uint32_t>& got = buffers[static_cast<std::size_t>(i)];
    check_equal(got, message(0, 1, i, got.size()));
  }
}

void crossing_sends_do_not_deadlock(Communicator& world) {
  for (int i = 0; i < 20; ++i) {
    std::vector<Request> requests;
    std::vector<std::vector<std::uint32_t>> in(static_cast<std::size_t>(world.size()));
    std::vector<std::vector<std::uint32_t>> out;
    for (int to = 0; to < world.size(); ++to) {
      out.push_back(message(world.rank(), to, i, 30'000));
      requests.push_back(world.send(to, raw(out.back()), "cross"));
    }
    for (int from = 0; from < world.size(); ++from) {
      std::vector<std::uint32_t>& buffer = in[static_cast<std::size_t>(from)];
      buffer.resize(30'000);
      requests.push_back(world.recv(from, raw(buffer), "cross"));
    }
    world.wait_all(requests);
    for (int from = 0; from < world.size(); ++from) {
      check_equal(in[static_cast<std::size_t>(from)], message(from, world.rank(), i, 30'000));
    }
  }
}

void a_test_does_not_block(Communicator& world) {
  std::vector<std::uint32_t> values = message(0, 1, 0, 20'000);
  if (world.rank() == 0) {
    world.barrier();
    Request request = world.send(1, raw(values), "late");
    world.wait(request);
    SLUICE_CHECK(request.empty() && world.test(request), "a finished request is not empty");
  } else {
    std::vector<std::uint32_t> in(values.size());
    Request request = world.recv(0, raw(in), "late");
    SLUICE_CHECK(!world.test(request), "it arrived before it was sent");
    world.barrier();
    while (!world.test(request))
      std::this_thread::sleep_for(milliseconds(1));
    check_equal(in, values);
  }
}

// No rank may leave before the last one has come, by the clock that all ranks of a machine share.
// The sleep lets a barrier that does not hold show it; a slow machine changes nothing.
void a_barrier_holds_until_the_last_rank(Communicator& world) {
  using Clock = std::chrono::steady_clock;
  for (int late = 0; late < world.size(); ++late) {
    world.barrier();
    if (world.rank() == late) std::this_thread::sleep_for(milliseconds(60));
    std::int64_t came[] = {Clock::now().time_since_epoch().count()};
    world.barrier();
    const std::int64_t left = Clock::now().time_since_epoch().count();
    std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
    world.all_gather(raw(came), raw(all));
    for (int r = 0; r < world.size(); ++r)
      SLUICE_CHECK(all[static_cast<std::size_t>(r)] <= left,
                   "rank {} left {} ns before rank {} came", world.rank(),
                   all[static_cast<std::size_t>(r)] - left, r);
  }
}

void collectives_give_the_bytes_of_each_rank(Communicator& world) {
  for (int root = 0; root < world.size(); ++root) {
    const std::vector<std::uint32_t> wanted = message(root, 9, root, 5'000);
    std::vector<std::uint32_t> values = wanted;
    if (world.rank() != root) std::fill(values.begin(), values.end(), 0U);
    world.broadcast(root, raw(values));
    check_equal(values, wanted);
  }
  std::vector<std::uint32_t> mine = message(world.rank(), 0, 1, 777);
  std::vector<std::uint32_t> all(777 * static_cast<std::size_t>(world.size()));
  world.all_gather(raw(mine), raw(all));
  for (int r = 0; r < world.size(); ++r) {
    const auto begin = all.begin() + 777 * r;
    check_equal(std::vector(begin, begin + 777), message(r, 0, 1, 777));
  }
  for (int root = 0; root < world.size(); ++root) {
    const auto length = [](int r) { return static_cast<std::size_t>(r) * 2'000; };
    std::vector<std::uint32_t> part = message(world.rank(), 0, 2, length(world.rank()));
    const std::vector<std::vector<std::byte>> parts = world.gather(root, raw(part));
    SLUICE_CHECK(parts.size() == (world.rank() == root ? 4U : 0U), "{} parts", parts.size());
    for (int r = 0; r < static_cast<int>(parts.size()); ++r) {
      std::vector<std::uint32_t> wanted = message(r, 0, 2, length(r));
      SLUICE_CHECK(std::ranges::equal(raw(wanted), parts[static_cast<std::size_t>(r)]),
                   "the part of rank {} is wrong", r);
    }
  }
}

void groups_are_apart_from_each_other(Communicator& world) {
  const std::vector<int> odd = {3, 1};
  const std::vector<int> all = {0, 1, 2, 3};
  const std::unique_ptr<Communicator> pair = world.group(odd);
  const std::unique_ptr<Communicator> copy = world.group(all);
  SLUICE_CHECK((pair != nullptr) == (world.rank() % 2 == 1), "rank {}", world.rank());
  if (pair != nullptr) {
    SLUICE_CHECK(pair->size() == 2 && pair->rank() == (world.rank() == 3 ? 0 : 1), "rank {} of {}",
                 pair->rank(), pair->size());
    // Sent in one order and received in another: only the group tells them apart.
    std::vector<std::uint32_t> out[] = {message(0, 0, 1, 9), message(0, 0, 2, 9),
                                        message(0, 0, 3, 9)};
    std::vector<std::uint32_t> in[] = {out[0], out[0], out[0]};
    std::vector<Request> requests;
    if (world.rank() == 3) {
      requests.push_back(copy->send(1, raw(out[2]), "copy"));
      requests.push_back(pair->send(1, raw(out[1]), "pair"));
      requests.push_back(world.send(1, raw(out[0]), "world"));
    } else {
      requests.push_back(world.recv(3, raw(in[0]), "world"));
      requests.push_back(pair->recv(0, raw(in[1]), "pair"));
      requests.push_back(copy->recv(3, raw(in[2]), "copy"));
    }
    world.wait_all(requests);
    for (int i = 0; i < 3 && world.rank() == 1; ++i)
      check_equal(in[i], out[i]);
    pair->barrier();
  }
  copy->barrier();
}

void groups_in_different_order(Communicator& world) {
  const std::vector<int> ranks = {world.rank(), 1 - world.rank()};
  world.group(ranks);
}

void a_wrong_size(Communicator& world, std::size_t sent, std::size_t expected) {
  std::vector<std::byte> bytes(world.rank() == 0 ? sent : expected);
  Request request = world.rank() == 0 ? world.send(1, bytes, "3F2") : world.recv(0, bytes, "3F2");
  world.wait(request);
  world.barrier();
}

void a_chain_that_waits_for_a_rank_that_hangs(Communicator& world) {
  std::vector<std::byte> bytes(64);
  if (world.rank() == 0) {
    // Long enough for the others' deadline, short enough for the test to end.
    std::this_thread::sleep_for(milliseconds(2500));
    Request request = world.recv(1, bytes, "too late");
    world.wait(request);
    return;
  }
  if (world.rank() == 1) std::this_thread::sleep_for(milliseconds(300));
  Request request = world.recv(world.rank() - 1, bytes, fmt::format("{}F5", world.rank() - 1));
  world.wait(request);
}

void a_rank_that_throws(Communicator& world) {
  std::vector<std::byte> bytes(100'000);
  Request request = world.recv((world.rank() + 1) % 3, bytes, "1I4");
  if (world.rank() == 1) {
    std::this_thread::sleep_for(milliseconds(100));
    throw std::runtime_error("loss is NaN");
  }
  world.wait(request);
}

void a_rank_that_throws_with_a_send_under_way(Communicator& world) {
  std::vector<std::byte> sent(1'000'000);
  std::vector<std::byte> received(10);
  if (world.rank() == 1) {
    const Request request = world.send(0, sent, "1I4");
    std::this_thread::sleep_for(milliseconds(100));
    throw std::runtime_error("loss is NaN");
  }
  Request request = world.recv(2 - world.rank(), received, "never sent");
  world.wait(request);
}

void a_rank_that_tells_before_it_drops_a_send(Communicator& world) {
  std::vector<std::byte> sent(1'000'000);
  std::vector<std::byte> received(10);
  if (world.rank() == 2) {
    const Request request = world.send(0, sent, "2I4");
    const UserError error("the disk is full", ExitCode::temporary);
    world.fail(std::make_exception_ptr(error));
    throw error;
  }
  Request request = world.recv(1 - world.rank(), received, "never sent");
  world.wait(request);
}

void ring(Communicator& world) {
  for (int i = 0; i < 5; ++i) {
    const int to = (world.rank() + 1) % world.size();
    const int from = (world.rank() + world.size() - 1) % world.size();
    std::vector<std::uint32_t> out = message(world.rank(), to, i, 2'000);
    std::vector<std::uint32_t> in(out.size());
    Request requests[] = {world.recv(from, raw(in), "ring"), world.send(to, raw(out), "ring")};
    world.wait_all(requests);
    check_equal(in, message(from, world.rank(), i, in.size()));
  }
}

// A ring in which rank 1 has a fault at a call: the 6th is the send of the third round, the 10th
// that of the last.
void ring_with(Communicator& world, Fault::Kind kind, int at_call) {
  if (world.rank() != 1) return ring(world);
  const Fault fault{.kind = kind, .at_call = at_call, .delay = milliseconds(200)};
  ring(*with_fault(world, fault));
}

std::vector<CommCase> make_cases() {
  const std::string nan = "rank 1 failed: loss is NaN";
  const std::string full = "rank 2 failed: the disk is full";
  const std::string fault = "injected fault at call 6 (send \"ring\")";
  const auto ring_fault = [](Fault::Kind kind, int at_call) {
    return [=](Communicator& world) { ring_with(world, kind, at_call); };
  };
  const auto size = [](std::size_t sent, std::size_t expected) {
    return [=](Communicator& world) { a_wrong_size(world, sent, expected); };
  };
  const auto size_text = [](int sent, int expected) {
    return fmt::format("rank 0 sent {} bytes as \"3F2\" and rank 1 expected {}", sent, expected);
  };
  return {
      {"PingPongKeepsTheOrder", 2, ping_pong_keeps_the_order, {}},
      {"ManyInFlightArriveInOrder", 2, many_in_flight_arrive_in_order, {}},
      {"CrossingSendsDoNotDeadlock", 3, crossing_sends_do_not_deadlock, {}},
      {"ATestDoesNotBlock", 2, a_test_does_not_block, {}},
      {"ABarrierHoldsUntilTheLastRank", 4, a_barrier_holds_until_the_last_rank, {}},
      {"CollectivesGiveTheBytesOfEachRank", 4, collectives_give_the_bytes_of_each_rank, {}},
      {"GroupsAreApartFromEachOther", 4, groups_are_apart_from_each_other, {}},
      {"ADelayedMessageIsHarmless", 3, ring_fault(Fault::Kind::delay, 6), {}},
      {"GroupsInDifferentOrderAreRefused",
       2,
       groups_in_different_order,
       {{"group 1"}, {"group 1"}}},
      {"ASmallerMessageIsAnErrorWithBothSizes",
       2,
       size(8, 4096),
       {{size_text(8, 4096)}, {size_text(8, 4096)}}},
      {"ALargerMessageIsAnErrorWithBothSizes",
       2,
       size(400'000, 16),
       {{size_text(400'000, 16)}, {size_text(400'000, 16)}}},
      {"ADeadlineNamesTheRankAtTheEndOfTheChain",
       3,
       a_chain_that_waits_for_a_rank_that_hangs,
       {{"rank 2 waited 1.0 s for rank 1 to send \"1F5\" (64 bytes)"},
        {"rank 1 waits for rank 0 (\"0F5\")"},
        {"rank 0 waits for nobody"}},
       milliseconds(1000)},
      {"ARankThatThrowsEndsTheOthersAtOnce",
       3,
       a_rank_that_throws,
       {{nan}, {"loss is NaN"}, {nan}}},
      {"ARankThatThrowsWithASendUnderWayIsNamed",
       3,
       a_rank_that_throws_with_a_send_under_way,
       {{"rank 1 failed: "}, {"loss is NaN"}, {"rank 1 failed: "}}},
      {"ARankThatTellsBeforeItDropsASendIsUnderstood",
       3,
       a_rank_that_tells_before_it_drops_a_send,
       {{full}, {full}, {"the disk is full"}}},
      {"AFaultAtTheNthCallReachesAllRanks",
       3,
       ring_fault(Fault::Kind::throw_error, 6),
       {{"rank 1 failed: " + fault}, {fault}, {"rank 1 failed: " + fault}}},
      {"ALostMessageIsNamed",
       3,
       ring_fault(Fault::Kind::drop, 10),
       {{}, {}, {"\"ring\" (8000 bytes)", "rank 1"}},
       milliseconds(1000)},
  };
}

}  // namespace

const std::vector<CommCase>& all_cases() {
  static const std::vector<CommCase> cases = make_cases();
  return cases;
}

}  // namespace sluice::test
