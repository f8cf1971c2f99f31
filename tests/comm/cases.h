// What every Communicator must do, as programs for a few ranks. The same list runs over threads
// (threads_test) and, one mpirun each, over MPI (mpi_test by way of mpi_program).
#pragma once

#include <chrono>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "sluice/comm/communicator.h"

namespace sluice::test {

struct CommCase {
  std::string name;
  int num_ranks = 2;
  std::function<void(Communicator&)> body;  // throws when something is wrong
  // Empty: every rank must end well. Else, for each rank, parts of the error it must end with.
  std::vector<std::vector<std::string>> errors;
  std::chrono::milliseconds deadline{10'000};
};

inline void PrintTo(const CommCase& c, std::ostream* out) { *out << c.name; }

const std::vector<CommCase>& all_cases();

}  // namespace sluice::test
