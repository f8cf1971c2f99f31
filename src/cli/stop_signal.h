// The signals that ask a run to stop: SIGTERM, SIGINT, SIGUSR1 (mpirun forwards it to its ranks,
// and Slurm can send it ahead of the time limit) and SIGHUP (the terminal was closed).
#pragma once

#include <atomic>

namespace sluice::cli {

// Installs the handlers and returns the flag that the first signal sets. Signals within two seconds
// of the first are the same request: `timeout` and terminals signal a process and then its group.
// A later signal ends the process at once with exit code 143. A SIGHUP that was ignored stays
// ignored (nohup). `speaks`: this process says on standard error that it was asked.
const std::atomic<bool>& stop_on_signals(bool speaks);

}  // namespace sluice::cli
