// NCCL on the GPUs that are there: one rank with itself on a single one, the cases of every
// Communicator on as many as each of them takes.
#include "sluice/comm/nccl/nccl.h"

#include <gtest/gtest.h>

#include "comm/device_memory.h"
#include "comm/over_threads.h"
#include "cuda/on_gpu.h"
#include "sluice/base/error.h"
#include "sluice/comm/tensors/group.h"

namespace sluice {
namespace {

using Nccl = test::OnGpu;

// Of the current GPU.
class TorchMemory : public test::DeviceMemory {
 public:
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    auto tensor = std::make_shared<at::Tensor>(at::empty(
        {static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kCUDA).dtype(at::kByte)));
    return {tensor, static_cast<std::byte*>(tensor->mutable_data_ptr())};
  }
  void to_device(std::byte* to, const std::byte* from, std::size_t bytes) override {
    on_device(to, bytes).copy_(on_host(from, bytes));
  }
  void to_host(std::byte* to, const std::byte* from, std::size_t bytes) override {
    on_host(to, bytes).copy_(on_device(from, bytes));
  }

 private:
  static at::Tensor view(const std::byte* data, std::size_t bytes, c10::Device device) {
    return at::from_blob(const_cast<std::byte*>(data), {static_cast<std::int64_t>(bytes)},
                         at::TensorOptions(device).dtype(at::kByte));
  }
  static at::Tensor on_host(const std::byte* data, std::size_t bytes) {
    return view(data, bytes, at::kCPU);
  }
  static at::Tensor on_device(const std::byte* data, std::size_t bytes) {
    return view(data, bytes, at::empty({0}, at::TensorOptions(at::kCUDA)).device());
  }
};

// body(world) on ranks with a GPU each.
void over_nccl(int num_ranks, const std::function<void(Communicator&)>& body) {
  run_threads(num_ranks, {}, [&](Communicator& threads) {
    const cuda::RankStream stream(threads.rank());
    run_nccl(threads, threads.rank(), {}, body);
  });
}

TEST_F(Nccl, ARankSendsToItself) {
  over_nccl(1, [](Communicator& world) {
    EXPECT_TRUE(world.moves_device_memory());
    std::vector<at::Tensor> sent, received;
    std::vector<Request> requests;
    for (const std::int64_t count : {1, 3, 1000, 5'000'000, 7}) {
      received.push_back(at::full({count}, -1, at::TensorOptions(at::kCUDA).dtype(at::kFloat)));
      // Made by the stream just now; both orders of posting.
      const bool receive_first = received.size() % 2 == 0;
      if (receive_first) requests.push_back(world.recv(0, tensor_bytes(received.back()), "self"));
      sent.push_back(at::randn({count}, at::TensorOptions(at::kCUDA)).mul_(3).add_(1));
      requests.push_back(world.send(0, tensor_bytes(sent.back()), "self"));
      if (!receive_first) requests.push_back(world.recv(0, tensor_bytes(received.back()), "self"));
    }
    world.wait_all(requests);
    // The current stream comes after the messages, without a wait of the host.
    for (std::size_t n = 0; n < sent.size(); ++n)
      EXPECT_TRUE(at::equal(sent[n], received[n])) << sent[n].numel() << " elements";
  });
}

TEST_F(Nccl, LanesAndGroupsOfOneAreApart) {
  over_nccl(1, [](Communicator& world) {
    const std::vector<int> all = {0};
    const std::unique_ptr<Communicator> group = world.group(all);
    Communicator* const ranks[] = {&world, &world, group.get(), group.get()};
    const Lane lanes[] = {Lane::messages, Lane::collectives, Lane::messages, Lane::collectives};
    std::vector<at::Tensor> sent, received;
    std::vector<Request> requests;
    for (int n = 0; n < 4; ++n) {
      sent.push_back(at::full({100'000}, n, at::TensorOptions(at::kCUDA)));
      received.push_back(at::zeros_like(sent.back()));
      requests.push_back(ranks[n]->post_send(lanes[n], 0, tensor_bytes(sent.back()), "self"));
    }
    for (int n = 3; n >= 0; --n)
      requests.push_back(ranks[n]->post_recv(
          lanes[n], 0, tensor_bytes(received[static_cast<std::size_t>(n)]), "self"));
    world.wait_all(requests);
    for (std::size_t n = 0; n < 4; ++n)
      EXPECT_TRUE(at::equal(sent[n], received[n])) << n;
  });
}

TEST_F(Nccl, ATestSaysWhenItHasMoved) {
  over_nccl(1, [](Communicator& world) {
    const at::Tensor sent = at::arange(1000, at::TensorOptions(at::kCUDA));
    const at::Tensor received = at::zeros_like(sent);
    Request receive = world.recv(0, tensor_bytes(received), "self");
    EXPECT_FALSE(world.test(receive));
    Request send = world.send(0, tensor_bytes(sent), "self");
    while (!world.test(receive) || !world.test(send)) {
    }
    EXPECT_TRUE(at::equal(sent, received));
  });
}

TEST_F(Nccl, HostMemoryAndCollectivesOfOneRank) {
  over_nccl(1, [](Communicator& world) {
    std::vector<int> mine = {4, 5, 6}, all(3), other(3);
    world.barrier();
    world.broadcast(0, std::as_writable_bytes(std::span(mine)));
    world.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    EXPECT_EQ(all, mine);
    EXPECT_EQ(world.gather(0, std::as_bytes(std::span(mine))).size(), 1U);
    Request requests[] = {world.recv(0, std::as_writable_bytes(std::span(other)), "host"),
                          world.send(0, std::as_bytes(std::span(mine)), "host")};
    world.wait_all(requests);
    EXPECT_EQ(other, mine);
  });
}

TEST_F(Nccl, AMessageThatIsGivenUpEndsTheRun) {
  EXPECT_THROW(over_nccl(1,
                         [](Communicator& world) {
                           at::Tensor sent = at::ones({1000}, at::TensorOptions(at::kCUDA));
                           world.send(0, tensor_bytes(sent), "dropped");
                         }),
               CommError);
  // What it leaves behind harms nobody.
  over_nccl(1, [](Communicator& world) { world.barrier(); });
}

TEST_F(Nccl, TwoRanksOfOneGpuAreRefused) {
  std::string said;
  try {
    run_threads(2, {}, [](Communicator& threads) {
      const cuda::RankStream stream(0);
      run_nccl(threads, 0, {}, [](Communicator&) {});
    });
  } catch (const UserError& error) {
    said = error.what();
  }
  EXPECT_NE(said.find("ranks 0 and 1 have the same GPU"), std::string::npos) << said;
}

class NcclCases : public testing::TestWithParam<test::CommCase> {};

TEST_P(NcclCases, OverGpus) {
  const test::CommCase& c = GetParam();
  if (cuda::num_devices() < c.num_ranks)
    GTEST_SKIP() << "takes " << c.num_ranks << " GPUs, and there are " << cuda::num_devices();
  test::expect_case(c, [](Communicator& threads, const CommOptions& options, const auto& body) {
    const cuda::RankStream stream(threads.rank());
    TorchMemory memory;
    run_nccl(threads, threads.rank(), options,
             [&](Communicator& world) { body(*test::through_device(world, memory)); });
  });
}

// A rank that fails leaves kernels of others waiting for it. Processes end; threads cannot be made
// to, so that here are the cases in which none fails.
std::vector<test::CommCase> good_cases() {
  std::vector<test::CommCase> cases = test::all_cases();
  std::erase_if(cases, [](const test::CommCase& c) { return !c.errors.empty(); });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Comm, NcclCases, testing::ValuesIn(good_cases()),
                         [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace sluice
