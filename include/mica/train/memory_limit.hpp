// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mica/mpi/communicator.hpp"

namespace mica::train {

/// A limit on memory that processes share.
struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string name;  ///< "memory.max of the cgroup /slurm/job_7/step_0"
  std::string id;    ///< the same for all processes of the node that share it, and for no others
};

/// The node's memory and the limits of this process's cgroups (Slurm's --mem, a container's limit), from the innermost to the
/// root; cgroup versions 1 and 2. @param root  prefix of /proc and of the mounts, for tests.
[[nodiscard]] std::vector<MemoryLimit> memory_limits(const std::string& root = "");

/// A limit, and what the ranks that share it need together.
struct MemoryShare {
  MemoryLimit limit;
  std::int64_t needed = 0;
  int num_ranks = 0;
};

/// The limit with the least memory left for the ranks of a node, or exceeded the most.
/// @param node  the ranks of one node.  @param needed  of this rank.  @param limits  of this rank, at least one. @collective
[[nodiscard]] MemoryShare tightest_limit(const mpi::Communicator& node, std::int64_t needed, const std::vector<MemoryLimit>& limits);

}  // namespace mica::train
