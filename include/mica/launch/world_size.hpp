// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace mica::launch {

/// Whether the launcher and the MPI library understood each other. If not, each process is a world of one rank, and N runs would
/// begin side by side. Local, with no exchange: there is nobody to ask.
/// @throws ConfigError if a launcher's variables (mpirun, mpiexec, srun) say that it started several processes, and the world
///         has one rank. On processes other than the launcher's first it is thrown a second later, so that one speaks.
void check_world_size(int num_ranks);

/// For programs that are meant to be started by a launcher.
/// @throws ConfigError if a Slurm job has several tasks, but this process was started without srun or mpirun.
void check_started_by_launcher(int num_ranks);

}  // namespace mica::launch
