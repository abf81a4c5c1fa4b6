// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thread>

namespace mica::launch {

/// Watches MPI_Init, which under srun may wait for ever if hosts cannot reach each other. After 2.5 s and after 10 s a thread of each
/// node's first rank connects to other hosts of the Slurm step. If one does not answer at all, it prints an error that names the pair, and
/// all ranks of the node end with status 3, since MPI_Abort is not possible yet. If something refuses the connections, the step's first
/// rank warns. If all answer, a slow start is left alone.
/// @returns the thread, which ends after these looks or when it is asked to stop; an empty std::jthread outside a Slurm step, with
///          MICA_INIT_WATCH=off, and where no thread can be started. Nothing that goes wrong in it ends the process.
[[nodiscard]] std::jthread watch_init();

}  // namespace mica::launch
