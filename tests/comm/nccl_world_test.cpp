// What nccl/world.cpp makes of links between GPUs, over links of a test's own.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "comm/fake_gpu.h"
#include "comm/over_threads.h"
#include "sluice/base/error.h"
#include "sluice/comm/nccl/world.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

// The body sees ranks with a GPU each. `memory`: messages of host memory go by way of the GPU.
test::RunBody on_gpus(const std::shared_ptr<test::FakeWires>& wires, bool memory) {
  return [=](Communicator& threads, const CommOptions& options,
             const std::function<void(Communicator&)>& body) {
    test::FakeGpu gpu(wires);
    run_on_gpus(threads, gpu, options, [&](Communicator& world) {
      memory ? body(*test::through_device(world, gpu)) : body(world);
    });
  };
}

class HostMemoryOverGpus : public testing::TestWithParam<test::CommCase> {};

TEST_P(HostMemoryOverGpus, Case) {
  test::expect_case(GetParam(), on_gpus(test::fake_wires(), false));
}

class DeviceMemoryOverGpus : public testing::TestWithParam<test::CommCase> {};

TEST_P(DeviceMemoryOverGpus, Case) {
  test::CommCase c = GetParam();
  // A deadline speaks of the announcement, which has other bytes.
  for (std::vector<std::string>& parts : c.errors)
    for (std::string& part : parts)
      part = part.substr(0, part.find(" ("));
  test::expect_case(c, on_gpus(test::fake_wires(), true));
}

// Without one: a wait may be over, and the data not there, when the fault cuts the link.
std::vector<test::CommCase> device_cases() {
  std::vector<test::CommCase> cases = test::all_cases();
  std::erase_if(cases, [](const auto& c) { return c.name == "AFaultAtTheNthCallReachesAllRanks"; });
  return cases;
}

const auto name_of = [](const auto& c) { return c.param.name; };
INSTANTIATE_TEST_SUITE_P(Comm, HostMemoryOverGpus, testing::ValuesIn(test::all_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Comm, DeviceMemoryOverGpus, testing::ValuesIn(device_cases()), name_of);

void over_gpus(int num_ranks, milliseconds deadline,
               const std::function<void(Communicator&, test::FakeGpu&)>& body,
               const std::shared_ptr<test::FakeWires>& wires = test::fake_wires()) {
  run_threads(num_ranks, {.comm = {deadline}}, [&](Communicator& threads) {
    test::FakeGpu gpu(wires);
    run_on_gpus(threads, gpu, {deadline}, [&](Communicator& world) { body(world, gpu); });
  });
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(NcclWorld, AWaitHoldsTheStreamAndNotTheRank) {
  over_gpus(2, milliseconds(5000), [](Communicator& world, test::FakeGpu& gpu) {
    EXPECT_TRUE(world.moves_device_memory());
    std::atomic<bool> go = false;
    const std::shared_ptr<std::byte> memory = gpu.allocate(8);
    std::byte seen{};
    if (world.rank() == 0) {
      // What is sent is made by the stream, later than it is sent.
      gpu.run([&] {
        while (!go)
          std::this_thread::yield();
        std::fill_n(memory.get(), 8, std::byte{7});
      });
      Request request = world.send(1, {memory.get(), 8}, "0F0");
      world.wait(request);
      // Comes after the message, although that has not moved yet.
      gpu.run([&] { std::fill_n(memory.get(), 8, std::byte{9}); });
      world.barrier();
      go = true;
    } else {
      Request request = world.recv(0, {memory.get(), 8}, "0F0");
      world.wait(request);
      gpu.run([&] { seen = memory.get()[7]; });
      world.barrier();
    }
    gpu.synchronize();
    if (world.rank() == 1) {
      EXPECT_EQ(seen, std::byte{7});
    }
  });
}

TEST(NcclWorld, BothMayWaitForTheirSendsFirst) {
  over_gpus(2, milliseconds(5000), [](Communicator& world, test::FakeGpu& gpu) {
    const int peer = 1 - world.rank();
    const auto mine = gpu.allocate(4), theirs = gpu.allocate(4);
    for (int n = 0; n < 20; ++n) {
      gpu.run([&, n] { *mine = static_cast<std::byte>(10 * n + world.rank()); });
      Request sent = world.send(peer, {mine.get(), 4}, "gradient");
      Request received = world.recv(peer, {theirs.get(), 4}, "gradient");
      world.wait(sent);
      world.wait(received);
      std::byte got{};
      gpu.to_host(&got, theirs.get(), 1);
      EXPECT_EQ(got, static_cast<std::byte>(10 * n + peer));
    }
  });
}

TEST(NcclWorld, BytesOfAnyKindKeepTheOrderOfTheirPair) {
  over_gpus(1, milliseconds(5000), [](Communicator& world, test::FakeGpu& gpu) {
    constexpr int kNumMessages = 12;
    std::vector<std::shared_ptr<std::byte>> device;
    std::vector<std::byte> host(2 * kNumMessages);
    std::vector<Request> requests;
    const auto place = [&](int n, bool sent) -> std::byte* {
      return n % 3 == 0 ? &host[static_cast<std::size_t>(2 * n + (sent ? 1 : 0))]
                        : device[static_cast<std::size_t>(2 * n + (sent ? 1 : 0))].get();
    };
    for (int n = 0; n < 2 * kNumMessages; ++n)
      device.push_back(gpu.allocate(1));
    for (int n = 0; n < kNumMessages; ++n) {
      requests.push_back(world.recv(0, {place(n, false), 1}, "self"));
      gpu.run([=] { *place(n, true) = static_cast<std::byte>(n); });
      if (n % 3 == 0) gpu.synchronize();
      requests.push_back(world.send(0, {place(n, true), 1}, "self"));
    }
    world.wait_all(requests);
    gpu.synchronize();
    for (int n = 0; n < kNumMessages; ++n)
      EXPECT_EQ(*place(n, false), static_cast<std::byte>(n));
  });
}

TEST(NcclWorld, ARankThatNeverPostsIsNamedWithTheMessage) {
  const std::string text = error_of([] {
    over_gpus(2, milliseconds(300), [](Communicator& world, test::FakeGpu& gpu) {
      const auto memory = gpu.allocate(4);
      Request request = world.recv(1 - world.rank(), {memory.get(), 4}, "2F1");
      world.wait(request);
    });
  });
  EXPECT_NE(text.find("to send \"2F1\""), std::string::npos) << text;
  EXPECT_NE(text.find("these ranks wait for each other: a deadlock"), std::string::npos) << text;
}

TEST(NcclWorld, ARankToItselfComparesSizesToo) {
  const std::string text = error_of([] {
    over_gpus(1, milliseconds(5000), [](Communicator& world, test::FakeGpu& gpu) {
      const auto memory = gpu.allocate(8);
      Request sent = world.send(0, {memory.get(), 4}, "self");
      Request received = world.recv(0, {memory.get() + 4, 3}, "self");
      world.wait(sent);
      world.wait(received);
    });
  });
  EXPECT_NE(text.find("rank 0 sent 4 bytes as \"self\" and rank 0 expected 3"), std::string::npos)
      << text;
}

TEST(NcclWorld, ABrokenLinkIsAnErrorOfEveryLaterCall) {
  std::vector<std::string> host_texts(2);
  const std::string text = error_of([&] {
    over_gpus(
        2, milliseconds(5000),
        [&](Communicator& world, test::FakeGpu& gpu) {
          const auto memory = gpu.allocate(4);
          host_texts[static_cast<std::size_t>(world.rank())] = error_of([&] {
            for (int n = 0; n < 3; ++n) {
              Request request = world.rank() == 0 ? world.send(1, {memory.get(), 4}, "0F0")
                                                  : world.recv(0, {memory.get(), 4}, "0F0");
              world.wait(request);
            }
          });
          world.barrier();
        },
        test::fake_wires(2));
  });
  for (const std::string& said : host_texts)
    EXPECT_NE(said.find("the cable is out"), std::string::npos) << said;
  EXPECT_NE(text.find("the cable is out"), std::string::npos) << text;
}

TEST(NcclWorld, ARankThatFailsSaysWhyBeforeItsLinksAreCut) {
  const auto wires = test::fake_wires(1 << 30, true);
  const std::string text = error_of([&] {
    run_threads(2, {}, [&](Communicator& threads) {
      test::FakeGpu gpu(wires);
      const auto body = [&](Communicator& world) {
        const auto memory = gpu.allocate(4);
        Request request = world.rank() == 0 ? world.send(1, {memory.get(), 4}, "0F0")
                                            : world.recv(0, {memory.get(), 4}, "0F0");
        world.wait(request);
        gpu.synchronize();
        if (world.rank() == 0) throw user_error("the disk is full");
        while (true) {
          world.throw_if_failed();
          std::this_thread::sleep_for(milliseconds(1));
        }
      };
      try {
        run_on_gpus(threads, gpu, {}, body);
      } catch (...) {
        // Long enough for the other rank to see the link go.
        if (threads.rank() == 0) std::this_thread::sleep_for(milliseconds(300));
        throw;
      }
    });
  });
  EXPECT_EQ(text, "rank 0: the disk is full");
}

TEST(NcclWorld, AMessageThatIsGivenUpTouchesNoMemoryAndEndsTheRun) {
  const std::string text = error_of([] {
    over_gpus(2, milliseconds(5000), [](Communicator& world, test::FakeGpu& gpu) {
      auto memory = gpu.allocate(4);
      Request request = world.rank() == 0 ? world.send(1, {memory.get(), 4}, "0F0")
                                          : world.recv(0, {memory.get(), 4}, "0F0");
      world.barrier();
      if (world.rank() == 0) {
        request = {};
        memory.reset();
        world.barrier();
        return;
      }
      world.wait(request);
      gpu.synchronize();
      world.barrier();
    });
  });
  EXPECT_NE(text.find("a message was dropped"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice
