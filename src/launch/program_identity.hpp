// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mica::launch {

/// Of this process's executable, byte by byte, and of the version of its MPI library.
[[nodiscard]] std::uint64_t program_hash();

}  // namespace mica::launch
