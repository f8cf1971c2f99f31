// Stands in for the rest of this folder where MPI was not found.
#include "sluice/base/error.h"
#include "sluice/comm/mpi/mpi.h"

namespace sluice {

bool has_mpi() { return false; }

int run_mpi(const MpiOptions&, const std::function<void(Communicator&)>&, const MpiReport& report) {
  const UserError error = user_error(
      "comm.backend is mpi: this program was built without MPI; install libopenmpi-dev and "
      "openmpi-bin and build again, or use comm.backend = threads");
  return report(std::make_exception_ptr(error), true);
}

}  // namespace sluice
