#include "sluice/runtime/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <vector>

namespace sluice {
namespace {

RankCores on(std::string_view host, int first_core, int num_cores) {
  RankCores rank;
  std::copy(host.begin(), host.end(), rank.host.begin());
  CPU_ZERO(&rank.cores);
  for (int core = first_core; core < first_core + num_cores; ++core)
    CPU_SET(static_cast<std::size_t>(core), &rank.cores);
  return rank;
}

TEST(Ranks, CoresAreDealtToTheRanksThatShareThem) {
  using List = std::vector<RankCores>;
  // Unbound: all share all.
  EXPECT_EQ(threads_per_rank(List{on("a", 0, 8), on("a", 0, 8)}), 4);
  EXPECT_EQ(threads_per_rank(List{on("a", 0, 8), on("a", 0, 8), on("a", 0, 8)}), 2);
  // Bound to cores of their own, or in pairs to half a machine.
  EXPECT_EQ(threads_per_rank(List{on("a", 0, 4), on("a", 4, 4)}), 4);
  EXPECT_EQ(threads_per_rank(List{on("a", 0, 1), on("a", 1, 1)}), 1);
  EXPECT_EQ(threads_per_rank(List{on("a", 0, 8), on("a", 0, 8), on("a", 8, 8), on("a", 8, 8)}), 4);
  // The same numbers on another host are other cores; the least counts everywhere.
  EXPECT_EQ(threads_per_rank(List{on("a", 0, 8), on("b", 0, 8)}), 8);
  EXPECT_EQ(threads_per_rank(List{on("a", 0, 8), on("b", 0, 2)}), 2);
  // More ranks than cores.
  EXPECT_EQ(threads_per_rank(List{on("a", 0, 1), on("a", 0, 1)}), 1);
}

TEST(Ranks, ThreadsOfAProcessShareItsCores) {
  cpu_set_t cores;
  ASSERT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  std::mutex mutex;
  std::vector<int> found;
  unsetenv("OMP_NUM_THREADS");
  const ExitCode code = run_ranks({.backend = Backend::threads}, 2, {}, [&](Communicator& world) {
    const int threads = threads_per_rank(world);
    const std::lock_guard lock(mutex);
    found.push_back(threads);
  });
  EXPECT_EQ(code, ExitCode::ok);
  EXPECT_EQ(found, std::vector<int>(2, std::max(1, CPU_COUNT(&cores) / 2)));
}

TEST(Ranks, TakeTheThreadsThatOmpNumThreadsAsksFor) {
  setenv("OMP_NUM_THREADS", "3", 1);
  std::mutex mutex;
  std::vector<int> found;
  run_ranks({.backend = Backend::threads}, 2, {}, [&](Communicator& world) {
    const int threads = threads_per_rank(world);
    const std::lock_guard lock(mutex);
    found.push_back(threads);
  });
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(found, std::vector<int>(2, 3));
}

TEST(Ranks, OmpNumThreadsIsANumberOrAList) {
  const auto asked = [](const char* text) {
    return threads_asked_for([text](const char*) { return text; });
  };
  EXPECT_EQ(asked(nullptr), 0);
  EXPECT_EQ(asked(""), 0);
  EXPECT_EQ(asked("4"), 4);
  EXPECT_EQ(asked(" 4, 2"), 4);
  for (const char* wrong : {"0", "-1", "many", "4 2", "1000000", ","})
    EXPECT_THROW(asked(wrong), UserError) << wrong;
}

TEST(Ranks, WithNcclEachRankOfAMachineHasAGpu) {
  Launch launch{.rank = 5, .size = 8, .local_rank = 1, .source = "PMI_RANK=5"};
  EXPECT_EQ(own_gpu(launch, 4), 1);
  EXPECT_EQ(own_gpu(launch, 2), 1);
  // The launcher shows each rank its own.
  EXPECT_EQ(own_gpu(launch, 1), 0);
  const auto refused = [&](int num_gpus) -> std::string {
    try {
      own_gpu(launch, num_gpus);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  launch.local_rank = 2;
  EXPECT_NE(refused(2).find("3 ranks or more were started on a machine with 2 GPUs"),
            std::string::npos);
  launch.local_rank = -1;
  EXPECT_NE(refused(2).find("PMI_RANK=5"), std::string::npos);
  EXPECT_EQ(own_gpu(launch, 1), 0);
  EXPECT_EQ(own_gpu(CommConfig{.backend = Backend::mpi}), 0);
}

}  // namespace
}  // namespace sluice
