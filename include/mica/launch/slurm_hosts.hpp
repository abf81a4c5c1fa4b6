// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

namespace mica::launch {

/// "node[08-10,12],login" -> node08, node09, node10, node12, login: Slurm's lists, with one pair of brackets in a name.
[[nodiscard]] std::vector<std::string> expand_hosts(const std::string& list);

/// Connects to the other hosts of this Slurm step, over TCP; a connection that is refused is an answer, too. May take 2 s.
/// @returns the first pair that is without a connection, with the address and the interface; empty if there is none, or nothing is known
[[nodiscard]] std::string unreachable_slurm_host();

/// Whom of `n` ranks, or hosts, number `own` connects to: all of a few, else those at distances 1, 2, 4, ..., which are those that
/// MPI's collectives talk to.
[[nodiscard]] std::set<int> peers_of(int own, int n);

}  // namespace mica::launch
