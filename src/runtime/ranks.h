// The ranks of a command, wherever they live: threads of this process, or processes that mpirun or
// srun started, with or without a GPU each, as comm.backend says.
#pragma once

#include <sched.h>

#include <array>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/comm/communicator.h"
#include "sluice/config/config.h"
#include "sluice/run/launch.h"
#include "sluice/runtime/agreement.h"

namespace sluice {

using Report = std::function<ExitCode(const std::exception_ptr& cause)>;  // prints it

// Runs body(world) on `num_ranks` ranks, where they are processes after all have compared `facts`.
// REQUIRES: comm.backend was chosen. Throws what goes wrong, except once processes have met: a
// failure of theirs is reported by one of them, and the exit code of it is returned by all. To be
// called at most once in a process, from the main thread, inside of report_once. Throws UserError
// where the launcher does not fit: none for mpi and nccl, one of several processes for threads, or
// not as many processes as ranks; and where facts differ.
ExitCode run_ranks(const CommConfig& comm, int num_ranks, const Report& report,
                   const std::function<void(Communicator&)>& body,
                   const std::vector<Fact>& facts = {});

// Runs `command`, and returns its exit code or that of what it throws. The same mistake is found by
// every process of a launcher; they meet, and one of them reports it.
ExitCode report_once(const std::function<ExitCode()>& command, const Report& report);

// The GPU of this process, of those that it sees: the first, or with nccl the one of its rank on
// the machine. Throws UserError where there are fewer, or the launcher does not say which rank that
// is. To be called before anything else asks for GPUs.
int own_gpu(const CommConfig& comm);
// The same with nccl, of so many. A single one is taken as the launcher's choice for this rank.
int own_gpu(const Launch& launch, int num_gpus);

// Where a rank computes: its host, and the cores of it that it is bound to.
struct RankCores {
  std::array<char, 256> host{};
  cpu_set_t cores;
};

// Threads that each rank may compute with: its cores, dealt among the ranks of its host that share
// any of them, and the least of this over all ranks, because bits are equal only for equal threads.
int threads_per_rank(std::span<const RankCores> ranks);
// OMP_NUM_THREADS, or 0 where it is not set. Throws UserError for what is not a number of threads.
int threads_asked_for(const Environment& environment);
// The threads asked for, else the same for the ranks of `world`, each of which calls it.
int threads_per_rank(Communicator& world);

}  // namespace sluice
