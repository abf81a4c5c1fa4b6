// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mica/mpi/communicator.hpp"

namespace mica::train {

/// Numbers of the cores that a process may run on, ascending.
using Cores = std::vector<int>;

/// Threads of one rank: its cores, divided by the ranks of the node that may run on any of them. A rank that is bound to its
/// own cores uses all of them.
[[nodiscard]] int threads_of_rank(const std::vector<Cores>& ranks_on_node, int rank);

/// What is wrong with the cores of a node's ranks together: bound to a part of them, or too few for the threads. Empty: nothing.
/// @param threads  of each rank  @param num_possible  cores that the ranks could be bound to
[[nodiscard]] std::string crowding_of(const std::string& host, const std::vector<Cores>& ranks, const std::vector<int>& threads,
                                      std::int64_t num_possible);

struct ThreadCount {
  int threads = 1;
  std::string warning;  ///< on rank 0: a rank, or a node's ranks together, have more threads than cores; else empty
};

/// OpenMP threads of this rank. @param wanted  mesh.threads; 0: OMP_NUM_THREADS, or threads_of_rank(). @collective
[[nodiscard]] ThreadCount choose_threads(const mpi::Communicator& world, int wanted);

}  // namespace mica::train
