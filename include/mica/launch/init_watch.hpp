// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thread>

namespace mica::launch {

/// Watches MPI_Init, which under srun may wait for ever if hosts cannot reach each other. If it takes more than 2.5 s, a thread of each
/// rank connects to the other hosts of the Slurm step. If one does not answer at all, the rank ends with status 2, since MPI_Abort is not
/// possible yet, and the node's first rank prints an error that names the pair. If something refuses the connections, the step's first rank
/// warns. If all answer, a slow start is left alone.
/// @returns the thread, which ends after that one look or when it is asked to stop; an empty std::jthread outside a Slurm step, and where
///          no thread can be started. Nothing that goes wrong in it ends the process.
[[nodiscard]] std::jthread watch_init();

}  // namespace mica::launch
