// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thread>

namespace mica::launch {

/// For the time in which MPI starts: under srun that may itself wait for ever for hosts that cannot reach each other. After 2.5 s it
/// connects to the other hosts of the Slurm step. Where one does not answer, it prints an error that names the pair, and ends this process
/// with status 2: MPI cannot be asked to end the job yet. A start that is only slow is left in peace.
/// @returns a thread that ends when it is asked to stop, or when MPI has been looked at
[[nodiscard]] std::jthread watch_init();

}  // namespace mica::launch
