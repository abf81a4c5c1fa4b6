// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mica/launch/launch_checks.hpp"

// Checks at start-up, one file each in src/launch. [Note: launch checks]
namespace mica::launch {

/// All ranks have the same flags; otherwise they would wait for each other for ever. Error.
[[nodiscard]] Check same_arguments(const std::vector<std::string>& arguments);

/// All ranks see the same value of `what`, e.g. "data.train". Error. @param value  called as the check's `look`
/// @param advice  what to change: the end of the message
[[nodiscard]] Check same_value(std::string what, std::function<std::string()> value, std::string advice);

/// The clocks of all hosts agree to within a minute. Warning.
[[nodiscard]] Check clocks();

/// /dev/shm is large enough for MPI and the ranks of a node. Warning, since MPI may use a slower path, or fail later.
[[nodiscard]] Check shared_memory();

/// No node is several times slower than the others in a matrix product and a memory copy, which take some 30 ms. Only with several
/// nodes. Warning.
[[nodiscard]] Check node_speed();

/// No node's network link is many times slower than the others' (with three nodes or more), nor all of them slower than Fast Ethernet.
/// Every node's lowest rank sends a few times 128 KiB to the next node's: a millisecond, or seconds over a bad link. Warning.
/// @param world  outlives the check, whose `look` is @collective over it
[[nodiscard]] Check link_speed(const mpi::Communicator& world);

/// Every rank sees rank 0's folder and may write to it. Error.
/// @param sees_it  whether this rank sees rank 0's files there; retried for 3 s, because network file systems may show files late
[[nodiscard]] Check shared_folder(std::string folder, std::function<bool()> sees_it);

}  // namespace mica::launch
