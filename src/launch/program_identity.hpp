// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mica::launch {

/// A hash of this process's executable, byte by byte, of Mica's version and of the MPI library's version.
[[nodiscard]] std::uint64_t program_hash();

}  // namespace mica::launch
