// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "mica/comm/host_comm.hpp"
#include "mica/train/time_limit.hpp"

namespace mica::train {

/// How long a save will take, before there was one: every rank that writes a shard writes up to 16 MiB of it into the run's
/// folder, at the same time as the others, and syncs; the slowest one's time for its whole shard is doubled.
/// @param shard_bytes  of this rank; 0: it writes none. @throws IoError on all ranks. @collective
[[nodiscard]] TimeLimit::Seconds estimate_save(const HostComm& comm, const std::string& run_folder, std::int64_t shard_bytes);

}  // namespace mica::train
