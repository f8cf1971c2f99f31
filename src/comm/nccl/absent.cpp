// Stands in for nccl.cpp where NCCL was not found, or programs cannot be linked with CUDA.
#include "base/error.h"
#include "comm/nccl/nccl.h"

namespace sluice {

void run_nccl(Communicator&, int, const CommOptions&, const std::function<void(Communicator&)>&) {
  throw user_error(
      "comm.backend is nccl: this build has no NCCL; build again where nvcc, nccl.h and a torch "
      "with CUDA are, or use comm.backend = mpi or threads");
}

}  // namespace sluice
