#include "runtime/ranks.h"

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
  const ExitCode code = run_ranks({}, 2, {}, [&](Communicator& world) {
    const int threads = threads_per_rank(world);
    const std::lock_guard lock(mutex);
    found.push_back(threads);
  });
  EXPECT_EQ(code, ExitCode::ok);
  EXPECT_EQ(found, std::vector<int>(2, std::max(1, CPU_COUNT(&cores) / 2)));
}

}  // namespace
}  // namespace sluice
