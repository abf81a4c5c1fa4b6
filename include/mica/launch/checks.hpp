// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mica/launch/launch_checks.hpp"

// The checks of a start, one file each in src/launch. [Note: launch checks]
namespace mica::launch {

/// All ranks have the same flags: different ones would leave ranks waiting for each other. Error.
[[nodiscard]] Check same_arguments(const std::vector<std::string>& arguments);

/// All ranks see the same value of `what`, e.g. "data.train". Error. @param value  computed by the look
/// @param advice  what to change, the end of the text
[[nodiscard]] Check same_value(std::string what, std::function<std::string()> value, std::string advice);

/// Clocks of hosts agree to a minute. Warning.
[[nodiscard]] Check clocks();

/// /dev/shm holds what MPI takes of it for the ranks of a node. Warning: MPI goes on with something slower, or fails later.
[[nodiscard]] Check shared_memory();

/// No node is several times slower than the others at a product and a copy, which take each rank some 30 ms. Only where there
/// are several nodes. Warning.
[[nodiscard]] Check node_speed();

/// Every rank sees rank 0's folder and may write to it. Error.
/// @param sees_it  whether this rank sees what rank 0 put there; asked again for 3 s, since network file systems show files late
[[nodiscard]] Check shared_folder(std::string folder, std::function<bool()> sees_it);

/// Local, for rank 0. @param what  "a checkpoint of this run"  @throws ConfigError if the file system of `folder` has fewer than
/// `needed_bytes` free. One that does not tell its size passes.
void check_disk_space(const std::string& folder, std::int64_t needed_bytes, const std::string& what);

}  // namespace mica::launch
