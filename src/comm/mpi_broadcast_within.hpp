// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <span>

#include "mica/mpi/communicator.hpp"

namespace mica::detail {

/// The root's bytes reach every rank, or nobody waits longer than `timeout` and a little: the root hears from every
/// rank first, and tells those who came either the bytes or who is missing, so that all of them say the same. After a
/// failure the communicator is of no use: messages of ranks that gave up may still come.
/// @collective  @throws MpiError: "rank 5 of the job did not connect within 600 s"
void broadcast_within(const mpi::Communicator& comm, std::span<std::byte> data, int root, std::chrono::milliseconds timeout);

}  // namespace mica::detail
