// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/mpi/communicator.hpp"

namespace mica::launch {

/// The first collective over MPI_COMM_WORLD. Between hosts that cannot reach each other, a blocking one would never return. This one
/// does not block: if it is not done after 1.5 s, ranks look for the reason without MPI messages. They publish their addresses through
/// the launcher (MPI_Publish_name) and connect to each other over TCP. If the launcher does not support that (srun), rank 0
/// connects to the hosts of its Slurm step. [Note: first exchange]
/// An exchange that is merely slow, as on a loaded machine, is never an error. It fails only if, after 3.5 s, all of a rank's peers
/// (peers_of()) have published, and so have reached it, and one of them can be reached on none of its addresses. Where nothing can be
/// published, nobody knows whether they have reached it: rank 0 only warns, with the host that it cannot reach.
/// The exchange compares a hash of the program and its MPI library's version.
/// @returns whether all ranks run the same program and MPI library.  @collective over MPI_COMM_WORLD
/// @throws Error naming a pair of ranks, hosts, addresses and the interface; on some ranks only
[[nodiscard]] bool first_exchange();

/// Call it if first_exchange() returned false. @collective
/// @throws ConfigError on all ranks together, naming a rank that runs another program
void refuse_programs(const mpi::Communicator& world);

}  // namespace mica::launch
