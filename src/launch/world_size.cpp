// SPDX-License-Identifier: Apache-2.0
#include "mica/launch/world_size.hpp"

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "mica/core/error.hpp"
#include "mica/mpi/session.hpp"

namespace mica::launch {
namespace {

/// An integer in the environment; -1 if the variable is not set.
int number_in(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? -1 : std::atoi(text);
}

/// A launcher that tells its processes how many there are.
struct Launcher {
  const char* name;
  const char* size_variable;
  const char* rank_variable;
  bool is_open_mpi;  ///< uses PMIx; else PMI
};

constexpr Launcher kLaunchers[] = {
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", true},
    {"mpiexec of MPICH's family (or srun --mpi=pmi2)", "PMI_SIZE", "PMI_RANK", false},
};

std::string what_to_change(const Launcher& launcher, const std::string& library) {
  const bool library_is_open_mpi = library.starts_with("Open MPI");
  if (library_is_open_mpi != launcher.is_open_mpi) {
    return fmt::format("start it with {}, or build it with the MPI of this launcher",
                       library_is_open_mpi ? "Open MPI's mpirun or srun --mpi=pmix" : "the mpiexec of its own MPI");
  }
  return "the versions of the launcher and the library do not work together, or a container hides the launcher's "
         "socket (in TMPDIR): use one version inside and outside, and check `which mpirun`";
}

}  // namespace

void check_world_size(int num_ranks) {
  if (num_ranks > 1) return;
  const std::string library = mpi::Session::library_version();
  const auto let_first_speak = [](int rank) {
    if (rank > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  };
  for (const Launcher& launcher : kLaunchers) {
    const int started = number_in(launcher.size_variable);
    if (started == 1) return;  // one rank was asked for, even if variables of an outer launcher are set
    if (started < 2) continue;
    let_first_speak(number_in(launcher.rank_variable));
    throw ConfigError(
        fmt::format("{} started {} processes ({}), but each is alone in a world of one rank, because this program's MPI is {}: {}",
                    launcher.name, started, launcher.size_variable, library, what_to_change(launcher, library)));
  }
  const int tasks = number_in("SLURM_STEP_NUM_TASKS");  // set by srun only
  if (tasks < 2) return;
  let_first_speak(number_in("SLURM_PROCID"));
  throw ConfigError(fmt::format(
      "srun started {} tasks (SLURM_STEP_NUM_TASKS), but each is alone in a world of one rank, because this program's MPI is {} and srun "
      "did not connect to it: {} (srun --mpi=list shows the available types), or start it with mpirun inside the allocation",
      tasks, library, library.starts_with("Open MPI") ? "srun --mpi=pmix" : "srun --mpi=pmi2"));
}

void check_started_by_launcher(int num_ranks) {
  const int tasks = number_in("SLURM_NTASKS");
  if (num_ranks > 1 || tasks < 2 || number_in("OMPI_COMM_WORLD_SIZE") == 1 || number_in("PMI_SIZE") == 1) return;
  throw ConfigError(
      fmt::format("the Slurm job has {} tasks (SLURM_NTASKS), but this process was started alone: start it with srun --mpi=pmix or "
                  "mpirun; for a single rank, srun --ntasks=1",
                  tasks));
}

}  // namespace mica::launch
