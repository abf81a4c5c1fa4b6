// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace mica::launch {

/// Checks that the launcher and the MPI library fit. If they do not, each process is a world of one rank, and N separate runs would
/// start. Local.
/// @throws ConfigError if a launcher's variables (mpirun, mpiexec, srun) say that it started several processes, and the world
///         has one rank. All processes but the launcher's first throw a second later, so that only one prints.
void check_world_size(int num_ranks);

/// For programs that should be started by a launcher.
/// @throws ConfigError if a Slurm job has several tasks, but this process was started without srun or mpirun.
void check_started_by_launcher(int num_ranks);

}  // namespace mica::launch
