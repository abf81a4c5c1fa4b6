// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/mpi/communicator.hpp"

namespace mica::launch {

/// The first exchange over MPI_COMM_WORLD, which would never come back where hosts cannot reach each other. It does not block:
/// when it is not done after 1.5 s, ranks look for the reason outside MPI's messages. They tell each other their addresses through
/// the launcher (MPI_Publish_name) and connect to each other over TCP; where srun passes on nothing, they connect to the hosts of
/// their Slurm step. [Note: first exchange]
/// An exchange that is only late, as on a loaded machine, is never an error: that takes ranks that have all come to the exchange and
/// waited, and one that answers on none of its addresses, 3.5 s after the start.
/// What it carries is a hash of the program and of its MPI library.
/// @returns whether all ranks run the same program and MPI library.  @collective over MPI_COMM_WORLD
/// @throws ConfigError naming a pair of ranks, hosts, addresses and the interface; on some ranks only
[[nodiscard]] bool first_exchange();

/// To be called if first_exchange() returned false. @collective
/// @throws ConfigError on all ranks together, naming the rank that runs something else
void refuse_programs(const mpi::Communicator& world);

}  // namespace mica::launch
