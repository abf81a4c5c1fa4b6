#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mica/mpi/communicator.hpp"

namespace mica::train {

/// Memory that processes share, and how much of it there is.
struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string name;  ///< "memory.max of the cgroup /slurm/job_7/step_0"
  std::string id;    ///< the same for all processes of the node that share it, and for no others
};

/// The node's memory, and what the cgroups that this process lies in allow of it (Slurm's --mem, a container's limit), from
/// the innermost to the root; versions 1 and 2. @param root  in front of /proc and of the mounts: tests make their own.
[[nodiscard]] std::vector<MemoryLimit> memory_limits(const std::string& root = "");

/// A limit, and what the ranks need together that share it.
struct MemoryShare {
  MemoryLimit limit;
  std::int64_t needed = 0;
  int num_ranks = 0;
};

/// The limit that the ranks of a node come closest to, or exceed the most.
/// @param node  the ranks of one node.  @param needed  of this rank.  @param limits  of this rank, at least one. @collective
[[nodiscard]] MemoryShare tightest_limit(const mpi::Communicator& node, std::int64_t needed, const std::vector<MemoryLimit>& limits);

}  // namespace mica::train
