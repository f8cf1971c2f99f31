#include "sluice/run/launch.h"

#include <climits>
#include <cstdlib>
#include <vector>

#include "sluice/base/error.h"
#include "sluice/base/names.h"
#include "sluice/base/text.h"

namespace sluice {

namespace {

struct Names {
  const char* rank;
  const char* size;        // nullptr: it has none
  const char* local_rank;  // nullptr: it has none
};

constexpr Names kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK"};
constexpr Names kPmix = {"PMIX_RANK", nullptr, nullptr};
constexpr Names kPmi = {"PMI_RANK", "PMI_SIZE", nullptr};
constexpr Names kSlurm = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"};

std::optional<int> read(const Environment& environment, const char* name) {
  const char* text = name == nullptr ? nullptr : environment(name);
  if (text == nullptr) return std::nullopt;
  const std::optional<std::int64_t> value = parse_int(text);
  if (!value || *value < 0 || *value > INT_MAX) {
    throw user_error("{} is \"{}\": not a rank number; start with mpirun or srun, or unset it",
                     name, text);
  }
  return static_cast<int>(*value);
}

std::optional<Launch> read(const Environment& environment, const Names& names) {
  const std::optional<int> rank = read(environment, names.rank);
  const std::optional<int> size = read(environment, names.size);
  if (!rank) return std::nullopt;
  if (names.size != nullptr && !size) {
    throw user_error(
        "{} is {} and {} is not set: the launcher's variables are incomplete; "
        "start with mpirun or srun, or unset it",
        names.rank, *rank, names.size);
  }
  if (size && *rank >= *size) {
    throw user_error(
        "{} is {} and {} is {}: ranks count from 0 to size - 1; start with mpirun or "
        "srun, or unset them",
        names.rank, *rank, names.size, *size);
  }
  std::string source = fmt::format("{}={}", names.rank, *rank);
  if (size) source += fmt::format(", {}={}", names.size, *size);
  return Launch{*rank, size.value_or(0), read(environment, names.local_rank).value_or(-1), source};
}

}  // namespace

std::optional<Launch> discover_launch(const Environment& environment) {
  std::vector<Launch> found;
  const bool under_mpirun = environment(kOpenMpi.rank) != nullptr;
  for (const Names& names : {kOpenMpi, kPmix, kPmi, kSlurm}) {
    if (names.rank == kSlurm.rank && (under_mpirun || environment(kSlurm.size) == nullptr))
      continue;
    if (std::optional<Launch> launch = read(environment, names)) found.push_back(*launch);
  }
  if (found.empty()) return std::nullopt;
  Launch all = found.front();
  for (std::size_t i = 1; i < found.size(); ++i) {
    const Launch& other = found[i];
    if (other.rank != all.rank || (other.size > 0 && all.size > 0 && other.size != all.size)) {
      throw user_error(
          "{} contradicts {}: two launchers disagree on the rank; start with one of "
          "them, or unset the variables of the other",
          other.source, all.source);
    }
    if (all.size == 0) all.size = other.size;
    if (all.local_rank < 0) all.local_rank = other.local_rank;
    all.source += ", " + other.source;
  }
  return all;
}

void check_launch(const std::optional<Launch>& launch, int rank, int size) {
  if (!launch) return;
  if (launch->rank == rank && (launch->size == 0 || launch->size == size)) return;
  throw user_error(
      "MPI gives rank {} of {} where the launcher says {}: the program and the launcher are "
      "of different MPI installations; use the mpirun that belongs to it, or srun --mpi=pmix",
      rank, size, launch->source);
}

std::optional<Launch> launch_of_this_process() {
  return discover_launch([](const char* name) { return std::getenv(name); });
}

Backend chosen_backend(const Config& config, const std::optional<Launch>& launch) {
  if (config.comm.backend != Backend::automatic) return config.comm.backend;
  // A single process can be all ranks, as threads.
  if (!launch || launch->size == 1) return Backend::threads;
  return config.cluster.device == DeviceKind::cuda ? Backend::nccl : Backend::mpi;
}

Backend chosen_backend(const Config& config) {
  return chosen_backend(config, launch_of_this_process());
}

std::string launch_problem(const CommConfig& comm, int num_ranks) {
  const std::optional<Launch> launch = launch_of_this_process();
  if (comm.backend == Backend::threads && launch && launch->size > 1)
    return fmt::format(
        "comm.backend is threads and {} processes were started ({}): each would do the whole work; "
        "use `comm.backend`=auto, or start one process",
        launch->size, launch->source);
  if (comm.backend != Backend::threads && !launch)
    return fmt::format(
        "comm.backend is {} and no launcher started this process: use mpirun -n {} ./sluice ..., "
        "or comm.backend = threads",
        comm.backend, num_ranks);
  return "";
}

bool prints_for_all() {
  const std::optional<Launch> launch = launch_of_this_process();
  return !launch || launch->rank == 0;
}

}  // namespace sluice
