// Ranks as processes, started by mpirun or srun. Messages are MPI's nonblocking ones; a thread of
// our own keeps them moving while the rank computes, and carries the signs of life by which ranks
// notice within a second that one of them was killed or stopped.
#pragma once

#include <functional>

#include "sluice/comm/communicator.h"
#include "sluice/comm/mpi/options.h"

namespace sluice {

// Whether this program was built with MPI.
bool has_mpi();

// Runs body(world) as the rank that the launcher gave this process, and returns the exit code: 0,
// or what `report` answered. When this rank fails (the body throws) or another one does, `report`
// is called once with the exception: the body's own, or a CommError naming the guilty rank, with
// its exit code. Then all ranks get a moment to do the same before the process may end. If several
// fail at once, for example because all of them find the same mistake, the lowest one speaks. A
// body that keeps computing and does not return is not waited for: `report` is then called from
// another thread, and the process ends. Call this once, from the main thread, and return the code
// from main(). After a failure MPI is not finalized, so that mpirun ends the remaining processes.
int run_mpi(const MpiOptions& options, const std::function<void(Communicator&)>& body,
            const MpiReport& report);

}  // namespace sluice
