// Which rank am I? The launchers (mpirun, srun) say it in the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "sluice/config/config.h"

namespace sluice {

struct Launch {
  int rank = 0;
  int size = 0;         // 0: the launcher does not say (PMIx alone)
  int local_rank = -1;  // -1: the launcher does not say
  std::string source;   // "OMPI_COMM_WORLD_RANK=1, PMIX_RANK=1", for messages
};

using Environment = std::function<const char*(const char* name)>;  // std::getenv, or a test's own

// What the launcher says, or nothing where there is none: OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK};
// PMIX_RANK; PMI_{RANK,SIZE}; SLURM_{PROCID,STEP_NUM_TASKS,LOCALID}. Throws a UserError for values
// that are not ranks, for a rank without a size, and for sets that contradict each other. Slurm's
// set counts only where srun started a step: a batch script has a SLURM_PROCID, too, and is one
// process. It is not compared with OpenMPI's: under mpirun inside an allocation it describes
// mpirun's daemon.
std::optional<Launch> discover_launch(const Environment& environment);

// Throws a UserError if the rank and size that the MPI library found are not the launcher's. That
// is the sign of a program built against a different MPI than that of the mpirun that started it.
void check_launch(const std::optional<Launch>& launch, int rank, int size);

// The same for this process.
std::optional<Launch> launch_of_this_process();

// What comm.backend = auto stands for: threads; where a launcher started several processes mpi, or
// with cluster.device = cuda nccl. Other values stay.
Backend chosen_backend(const Config& config, const std::optional<Launch>& launch);
// The same for this process.
Backend chosen_backend(const Config& config);

// What run_ranks would refuse before any rank starts, because of how this process was started; ""
// where it would not.
std::string launch_problem(const CommConfig& comm, int num_ranks);

// Whether this process prints what all know: it has no launcher, or is rank 0 of one.
bool prints_for_all();

}  // namespace sluice
