// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "mica/mpi/communicator.hpp"

namespace mica::detail {

/// Maps memory that all ranks of `comm`, which are on one node, share: `bytes` bytes, zero, page-aligned.
/// Each rank allocates the pages that begin in [own_begin, own_end); the ranks' ranges cover everything. So the pages are on its NUMA
/// node, and no rank runs out of memory when it uses them. The segment's name is removed as soon as all ranks have opened it: the
/// memory is freed with the last process that maps it. @collective
/// @param what  "group 'shard' of 4 ranks", for errors.
/// @throws ConfigError on all ranks, with the bytes needed and free.
[[nodiscard]] std::shared_ptr<std::byte> map_shared_memory(const mpi::Communicator& comm, const std::string& what, std::int64_t bytes,
                                                           std::int64_t own_begin, std::int64_t own_end);

}  // namespace mica::detail
