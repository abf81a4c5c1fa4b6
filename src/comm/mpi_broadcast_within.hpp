// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <span>

#include "mica/mpi/communicator.hpp"

namespace mica::detail {

/// A broadcast in which no rank waits much longer than `timeout`: every rank first sends the root a message, and the root answers
/// either with the data or with the ranks that are missing, so that all ranks throw the same error. After a failure the communicator
/// must not be used again: messages of ranks that gave up may still arrive.
/// @collective  @throws MpiError: "rank 5 of the job did not connect within 600 s"
void broadcast_within(const mpi::Communicator& comm, std::span<std::byte> data, int root, std::chrono::milliseconds timeout);

}  // namespace mica::detail
