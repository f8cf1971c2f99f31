// Stands in for nccl.cpp where NCCL was not found, or programs cannot be linked with CUDA.
#include "sluice/base/error.h"
#include "sluice/comm/nccl/nccl.h"

namespace sluice {

void run_nccl(Communicator&, int, const CommOptions&, const std::function<void(Communicator&)>&) {
  throw user_error(
      "comm.backend is nccl: this program was built without NCCL; build it where nvcc, nccl.h and "
      "a "
      "torch with CUDA are installed, or use comm.backend = mpi or threads");
}

}  // namespace sluice
