#include "sluice/comm/threads/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "comm/over_threads.h"
#include "sluice/base/error.h"

namespace sluice {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class OverThreads : public testing::TestWithParam<test::CommCase> {};

TEST_P(OverThreads, Case) {
  test::expect_case(GetParam(), [](Communicator& threads, const CommOptions&, const auto& body) {
    body(threads);
  });
}

INSTANTIATE_TEST_SUITE_P(Comm, OverThreads, testing::ValuesIn(test::all_cases()),
                         [](const auto& c) { return c.param.name; });

std::string error_of(int num_ranks, const ThreadsOptions& options,
                     const std::function<void(Communicator&)>& body) {
  try {
    run_threads(num_ranks, options, body);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Threads, AUserErrorKeepsItsExitCodeAndNamesTheRank) {
  try {
    run_threads(2, {}, [](Communicator& world) {
      if (world.rank() == 1) throw UserError("shard 3 is truncated", ExitCode::bad_data);
      world.barrier();
    });
    FAIL() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "rank 1: shard 3 is truncated");
    EXPECT_EQ(error.code(), ExitCode::bad_data);
  }
}

TEST(Threads, AnyOtherExceptionBecomesACommErrorWithTheGuiltyRank) {
  try {
    run_threads(3, {}, [](Communicator& world) {
      if (world.rank() == 2) throw std::out_of_range("no such layer");
      world.barrier();
    });
    FAIL() << "nothing was thrown";
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "rank 2 failed: no such layer");
    EXPECT_EQ(error.guilty(), 2);
  }
}

TEST(Threads, ARankThatEndsEarlyFailsWhoWaitsForItAtOnce) {
  const auto start = Clock::now();
  const std::string text = error_of(2, {}, [](Communicator& world) {
    std::vector<std::byte> bytes(4);
    if (world.rank() == 1) return;
    Request request = world.recv(1, bytes, "2B3");
    world.wait(request);
  });
  EXPECT_EQ(text, "rank 1 ended before it sent \"2B3\" (4 bytes), which rank 0 waits for");
  EXPECT_LT(Clock::now() - start, milliseconds(2000));
}

TEST(Threads, ACircleOfWaitsIsCalledACircle) {
  const std::string text = error_of(2, {.comm = {milliseconds(300)}}, [](Communicator& world) {
    std::vector<std::byte> bytes(4);
    Request request = world.recv(1 - world.rank(), bytes, "circle");
    world.wait(request);
  });
  EXPECT_NE(text.find("these ranks wait for each other: a deadlock"), std::string::npos) << text;
}

TEST(Threads, ASendDoesNotFinishBeforeItsReceive) {
  std::atomic<bool> posted = false;
  run_threads(2, {}, [&](Communicator& world) {
    std::vector<std::byte> bytes(1);
    if (world.rank() == 0) {
      Request request = world.send(1, bytes, "rendezvous");
      world.wait(request);
      EXPECT_TRUE(posted);
    } else {
      std::this_thread::sleep_for(milliseconds(50));
      posted = true;
      Request request = world.recv(0, bytes, "rendezvous");
      world.wait(request);
    }
  });
}

// A message that is withdrawn by an error must not be written to afterwards, and must not shift
// those that follow it.
TEST(Threads, NothingMeetsAWithdrawnReceive) {
  const std::string text = error_of(2, {.comm = {milliseconds(300)}}, [](Communicator& world) {
    std::vector<std::byte> bytes(8);
    if (world.rank() == 0) {
      { const Request dropped = world.recv(1, bytes, "dropped"); }
      Request request = world.recv(1, bytes, "second");
      world.wait(request);
    } else {
      std::this_thread::sleep_for(milliseconds(50));
      Request request = world.send(0, bytes, "dropped");
      world.wait(request);
    }
  });
  EXPECT_NE(text.find("waited 0.3 s"), std::string::npos) << text;
}

TEST(ThreadsDeathTest, ARankThatNeverComesBackEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const ThreadsOptions options{.comm = {milliseconds(200)}, .grace = milliseconds(300)};
  EXPECT_EXIT(run_threads(3, options,
                          [](Communicator& world) {
                            while (world.rank() == 1)
                              std::this_thread::sleep_for(milliseconds(5));
                            world.barrier();
                          }),
              testing::ExitedWithCode(75), "for rank 1 to .*\n.*did not stop: rank 1\n");
}

// Many ranks, many messages, waits in all orders: something for the thread sanitizer to look at.
TEST(Threads, AStormOfMessagesArrivesWhole) {
  run_threads(6, {}, [](Communicator& world) {
    for (int round = 0; round < 100; ++round) {
      const int stride = 1 + round % 5;
      const int to = (world.rank() + stride) % 6;
      const int from = (world.rank() + 6 - stride) % 6;
      std::vector<int> out(100, world.rank() * 1000 + round);
      std::vector<int> in(100);
      Request send = world.send(to, std::as_bytes(std::span(out)), "storm");
      Request recv = world.recv(from, std::as_writable_bytes(std::span(in)), "storm");
      while (!world.test(recv))
        std::this_thread::yield();
      world.wait(send);
      ASSERT_EQ(in, std::vector<int>(100, from * 1000 + round));
    }
    world.barrier();
  });
}

}  // namespace

}  // namespace sluice
