// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

namespace mica::launch {

/// "node[08-10,12],login" -> node08, node09, node10, node12, login: Slurm's host lists, with at most one pair of brackets per name.
[[nodiscard]] std::vector<std::string> expand_hosts(const std::string& list);

struct UnreachableHost {
  std::string pair;  ///< "node1 cannot reach node2 at 10.0.0.2 from eth0 (10.0.0.1): no answer within 1 s"; empty: all can be reached
  /// None of its addresses answers anything. Else something refuses to connect, perhaps a firewall, and perhaps this port alone: MPI may
  /// use other ports, or another network.
  bool is_silent = false;
};

/// Connects to other hosts of this Slurm step over TCP, at all their addresses; a refused connection (ECONNREFUSED) also proves that a host
/// is reachable. Starts no threads. Takes up to 3 s, and the time to look up the hosts' names.
/// @param list  its SLURM_STEP_NODELIST
/// @returns the first silent host, else the first other one that cannot be reached
[[nodiscard]] UnreachableHost unreachable_slurm_host(const std::string& list);

/// The ranks (or hosts) out of `n` to which number `own` connects: all of up to 64, else those at distances 1, 2, 4, ..., as in MPI's
/// collectives.
[[nodiscard]] std::set<int> peers_of(int own, int n);

}  // namespace mica::launch
