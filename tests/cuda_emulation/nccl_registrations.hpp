// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <nccl.h>

namespace mica::cuda_emulation {

/// How far behind the beginning of a buffer registered with the communicator these bytes begin; -1: they are in none.
[[nodiscard]] std::ptrdiff_t registered_offset(const ncclComm* comm, const void* data, std::size_t bytes);
/// The communicator's end is its registrations' end.
void forget_registrations(const ncclComm* comm);
/// Ends the process if a registered buffer lies there: its memory is about to go.
void check_not_registered(std::uintptr_t begin, std::size_t bytes);

}  // namespace mica::cuda_emulation
