// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thread>

namespace mica::launch {

/// Watches MPI_Init, which under srun may wait for ever if hosts cannot reach each other. If it takes more than 2.5 s, this thread
/// connects to the other hosts of the Slurm step. If one does not answer, it prints an error that names the pair and ends this process
/// with status 2, since MPI_Abort is not possible yet. If all answer, a slow start is left alone.
/// @returns the thread, which ends after that one look or when it is asked to stop; outside a Slurm step an empty std::jthread
[[nodiscard]] std::jthread watch_init();

}  // namespace mica::launch
