// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

namespace mica::launch {

/// "node[08-10,12],login" -> node08, node09, node10, node12, login: Slurm's host lists, with at most one pair of brackets per name.
[[nodiscard]] std::vector<std::string> expand_hosts(const std::string& list);

/// Connects to other hosts of this Slurm step over TCP; a refused connection also proves that a host is reachable. May take 2 s.
/// @param list  its SLURM_STEP_NODELIST
/// @returns the first pair that cannot connect, with address and interface; empty if there is none
[[nodiscard]] std::string unreachable_slurm_host(const std::string& list);

/// The ranks (or hosts) out of `n` to which number `own` connects: all of up to 64, else those at distances 1, 2, 4, ..., as in MPI's
/// collectives.
[[nodiscard]] std::set<int> peers_of(int own, int n);

}  // namespace mica::launch
