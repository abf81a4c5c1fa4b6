// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "mica/comm/host_comm.hpp"
#include "mica/train/time_limit.hpp"

namespace mica::train {

/// Estimates how long a save takes, before one was measured. All ranks that write a shard write up to 16 MiB of random data into the folder
/// at the same time, and sync. The slowest rank's time, scaled to its whole shard, is doubled.
/// @param shard_bytes  of this rank; 0: it writes none. @throws IoError on all ranks. @collective
[[nodiscard]] TimeLimit::Seconds estimate_save(const HostComm& comm, const std::string& folder, std::int64_t shard_bytes);

}  // namespace mica::train
