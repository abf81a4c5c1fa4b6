// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mica/mpi/communicator.hpp"

namespace mica::train {

/// Numbers of the cores that a process may run on, ascending.
using Cores = std::vector<int>;

/// Threads of one rank: its number of cores, divided by the number of the node's ranks that may run on any of these cores. A rank bound to
/// its own cores uses all of them.
[[nodiscard]] int threads_of_rank(const std::vector<Cores>& ranks_on_node, int rank);

/// A warning if the ranks of a node have more threads than cores: because they are bound to only part of the cores, or because the node has
/// too few. Empty: no warning.
/// @param threads  of each rank  @param num_possible  cores that the ranks could be bound to
[[nodiscard]] std::string crowding_of(const std::string& host, const std::vector<Cores>& ranks, const std::vector<int>& threads,
                                      std::int64_t num_possible);

struct ThreadCount {
  int threads = 1;
  std::string warning;  ///< on rank 0, if a rank, or a node's ranks together, have more threads than cores; else empty
};

/// OpenMP threads of this rank. @param wanted  mesh.threads; 0: OMP_NUM_THREADS, or threads_of_rank(), but no more than the CPU quotas of
/// the rank's cgroups allow (threads_of_quotas()). @collective
[[nodiscard]] ThreadCount choose_threads(const mpi::Communicator& world, int wanted);

}  // namespace mica::train
