// What an executor says when an op fails.
#include "sluice/runtime/executor.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>

#include "sluice/comm/fault.h"
#include "sluice/comm/threads/threads.h"
#include "sluice/schedule/generators/generator.h"
#include "sluice/schedule/validate.h"
#include "support/plans.h"

namespace sluice {
namespace {

enum class Broken {
  nothing,
  token,    // microbatch 2 holds one that the embedding does not have
  message,  // of the sends and receives of rank 1, the third never happens
  rank      // rank 1 hangs from the start until rank 0 has given up
};

// Two ranks, one layer each, 1F1B of four microbatches.
std::string error_of(Broken broken) {
  GeneratorOptions generator;
  generator.devices = 2;
  generator.microbatches = 4;
  ModelShape shape;
  shape.layers = 2;
  shape.dim = shape.ffn_dim = 8;
  shape.heads = shape.kv_heads = 1;
  shape.vocab_size = 10;
  shape.positions = 4;
  const RunPlan plan =
      test::plan_for(shape, validate(generate_schedule("1f1b", generator)).lowered, 4, 4);
  std::atomic<bool> gave_up = false;
  const auto body = [&](Communicator& threads) {
    at::set_num_threads(1);
    const int rank = threads.rank();
    std::unique_ptr<Communicator> faulty;
    if (rank == 1 && broken == Broken::message)
      faulty = with_fault(threads, {.kind = Fault::Kind::drop, .at_call = 3});
    if (rank == 1 && broken == Broken::rank) {
      gave_up.wait(false);
      return;
    }
    Stage stage(plan, rank);
    stage.begin_step(1);
    const at::Tensor zeros = at::zeros({1, 4}, at::kLong);
    const Microbatch good{zeros, zeros, {}, {}};
    const Microbatch bad{zeros + 10, zeros, {}, {}};
    const auto pipeline = make_tensor_channel(faulty ? *faulty : threads, at::kCPU);
    Executor executor(plan.schedule, {{rank, &stage}}, *pipeline);
    try {
      executor.run(
          [&](int m) -> const Microbatch& {
            return broken == Broken::token && m == 2 ? bad : good;
          },
          8, at::kFloat, std::chrono::steady_clock::now());
    } catch (...) {
      gave_up = true;
      gave_up.notify_all();
      throw;
    }
  };
  // Short only where it must pass.
  const std::chrono::milliseconds deadline(broken == Broken::rank ? 300 : 60'000);
  try {
    run_threads(2, {.comm = {.deadline = deadline}}, body);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Executor, RunsWithoutAFault) { EXPECT_EQ(error_of(Broken::nothing), ""); }

TEST(Executor, AnErrorOfALayerShowsItsOpInTheGrid) {
  EXPECT_EQ(error_of(Broken::token),
            "rank 0: index out of range in self; rank 0 was at 0F2 (op 6)\n"
            "Around it, as if all ops took equally long:\n"
            "rank 0  0F0  0F1  .    0B0 [0F2] 0B1  0F3  0B2  .    0B3\n"
            "rank 1  .    1F0  1B0  1F1  1B1  1F2  1B2  1F3  1B3  .");
}

TEST(Executor, AMessageThatNeverComesIsShownWhereItIsWaitedFor) {
  EXPECT_EQ(error_of(Broken::message),
            "rank 1 ended before it sent \"0RECV_B3\" (128 bytes), which rank 0 waits for; rank 0 "
            "was at 0B3 (op 15)\n"
            "Around it, as if all ops took equally long:\n"
            "rank 0  0F1  .    0B0  0F2  0B1  0F3  0B2  .   [0B3]\n"
            "rank 1  1F0  1B0  1F1  1B1  1F2  1B2  1F3  1B3  .");
}

TEST(Executor, ADeadlineIsShownWhereItWasMet) {
  EXPECT_EQ(
      error_of(Broken::rank),
      "rank 0 waited 0.3 s for rank 1 to send \"0RECV_B0\" (128 bytes); rank 1 waits for "
      "nobody: it hangs, or needs more than comm.train_timeout_seconds; rank 0 was at 0B0 (op 5)\n"
      "Around it, as if all ops took equally long:\n"
      "rank 0  0F0  0F1  .   [0B0] 0F2  0B1  0F3  0B2  .    0B3\n"
      "rank 1  .    1F0  1B0  1F1  1B1  1F2  1B2  1F3  1B3  .");
}

}  // namespace
}  // namespace sluice
