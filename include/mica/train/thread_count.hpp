// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/mpi/communicator.hpp"

namespace mica::train {

/// Numbers of the cores that a process may run on, ascending.
using Cores = std::vector<int>;

/// Threads of one rank: its cores, divided by the ranks of the node that may run on any of them. A rank that is bound to its
/// own cores uses all of them.
[[nodiscard]] int threads_of_rank(const std::vector<Cores>& ranks_on_node, int rank);

struct ThreadCount {
  int threads = 1;
  std::string warning;  ///< on rank 0: some rank has more threads than cores; else empty
};

/// OpenMP threads of this rank. @param wanted  mesh.threads; 0: OMP_NUM_THREADS, or threads_of_rank(). @collective
[[nodiscard]] ThreadCount choose_threads(const mpi::Communicator& world, int wanted);

}  // namespace mica::train
