#include "sluice/runtime/ranks.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "sluice/base/names.h"
#include "sluice/base/text.h"
#include "sluice/comm/mpi/mpi.h"
#include "sluice/comm/nccl/nccl.h"
#include "sluice/comm/threads/threads.h"
#include "sluice/cuda/device.h"
#include "sluice/runtime/allocator.h"

namespace sluice {
namespace {

MpiReport as_mpi_report(const Report& report) {
  return [report](const std::exception_ptr& cause, bool speaks) {
    return static_cast<int>(speaks ? report(cause) : exit_code_of(cause));
  };
}

bool share_cores(const RankCores& a, const RankCores& b) {
  cpu_set_t both;
  CPU_AND(&both, &a.cores, &b.cores);
  return std::strcmp(a.host.data(), b.host.data()) == 0 && CPU_COUNT(&both) > 0;
}

}  // namespace

ExitCode run_ranks(const CommConfig& comm, int num_ranks, const Report& report,
                   const std::function<void(Communicator&)>& body, const std::vector<Fact>& facts) {
  SLUICE_CHECK(comm.backend != Backend::automatic, "comm.backend is auto for {} ranks", num_ranks);
  keep_freed_memory();
  if (const std::string problem = launch_problem(comm, num_ranks); !problem.empty())
    throw UserError(problem);
  const CommOptions options{.deadline = std::chrono::milliseconds(
                                static_cast<std::int64_t>(1000 * comm.train_timeout_seconds))};
  if (comm.backend == Backend::threads) {
    run_threads(num_ranks, {.comm = options}, body);
    return ExitCode::ok;
  }
  const auto checked = [&](Communicator& world) {
    check_same_settings(world, facts);
    if (world.size() != num_ranks)
      throw user_error(
          "comm.backend is {} with {}, and the mesh (data x pipeline x tensor) has {}: start {} "
          "(mpirun -n {}), or change the parallelism degrees",
          comm.backend, counted(world.size(), "process"), counted(num_ranks, "rank"), num_ranks,
          num_ranks);
    if (comm.backend == Backend::nccl)
      run_nccl(world, own_gpu(comm), options, body);
    else
      body(world);
  };
  return static_cast<ExitCode>(run_mpi({.comm = options}, checked, as_mpi_report(report)));
}

ExitCode report_once(const std::function<ExitCode()>& command, const Report& report) {
  try {
    return command();
  } catch (...) {
    const std::exception_ptr cause = std::current_exception();
    std::optional<Launch> launch;
    try {
      launch = launch_of_this_process();
    } catch (const UserError&) {  // then it is the cause
    }
    if (!has_mpi() || !launch || launch->size == 1) return report(cause);
    const auto fail = [&](Communicator&) { std::rethrow_exception(cause); };
    return static_cast<ExitCode>(run_mpi({}, fail, as_mpi_report(report)));
  }
}

int own_gpu(const Launch& launch, int num_gpus) {
  if (num_gpus <= 1) return 0;
  if (launch.local_rank < 0)
    throw user_error(
        "comm.backend is nccl and the launcher ({}) does not say which rank of this machine this "
        "is: start with mpirun or srun, or let each rank see only its own GPU "
        "(CUDA_VISIBLE_DEVICES)",
        launch.source);
  if (launch.local_rank >= num_gpus)
    throw user_error(
        "comm.backend is nccl and {} ranks or more were started on a machine with {} GPUs: start "
        "at most one for each",
        launch.local_rank + 1, num_gpus);
  return launch.local_rank;
}

int own_gpu(const CommConfig& comm) {
  if (comm.backend != Backend::nccl) return 0;
  const std::optional<Launch> launch = launch_of_this_process();
  if (!launch) return 0;
  // Streams of NCCL's have to run side by side: as many queues as a GPU can have. The driver reads
  // this when it starts.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  return own_gpu(*launch, cuda::num_devices());
}

int threads_per_rank(std::span<const RankCores> ranks) {
  int least = CPU_SETSIZE;
  for (const RankCores& rank : ranks) {
    const auto num_sharing = std::count_if(ranks.begin(), ranks.end(), [&](const RankCores& other) {
      return share_cores(rank, other);
    });
    if (num_sharing > 0)
      least = std::min(least, CPU_COUNT(&rank.cores) / static_cast<int>(num_sharing));
  }
  return std::max(least, 1);
}

int threads_asked_for(const Environment& environment) {
  constexpr std::int64_t kMost = 1024;
  const char* text = environment("OMP_NUM_THREADS");
  if (!text || !*text) return 0;
  // A list is one number for each level of nested loops; ours are of the first.
  const std::string_view first = trim(split(text, ',').front());
  const std::optional<std::int64_t> threads = parse_int(first);
  if (!threads || *threads < 1 || *threads > kMost)
    throw user_error(
        "OMP_NUM_THREADS is '{}': needs the threads of each rank, a whole number from 1 to {}; "
        "unset it to divide the cores among the ranks",
        text, kMost);
  return static_cast<int>(*threads);
}

int threads_per_rank(Communicator& world) {
  if (const int asked = threads_asked_for(std::getenv); asked > 0) return asked;
  RankCores mine;
  gethostname(mine.host.data(), mine.host.size() - 1);
  CPU_ZERO(&mine.cores);
  if (sched_getaffinity(0, sizeof mine.cores, &mine.cores) != 0) CPU_SET(0, &mine.cores);
  std::vector<RankCores> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                   "cores");
  return threads_per_rank(all);
}

}  // namespace sluice
