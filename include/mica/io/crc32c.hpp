// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mica::io {

/// CRC-32C (Castagnoli, the one of iSCSI, of SSE4.2 and of ARMv8) of `bytes` bytes. Known answer: "123456789" gives 0xE3069283.
/// Uses the processor's CRC instruction, if it has one, in three interleaved streams.
/// @param previous  the checksum of the bytes before, so that crc32c(b, n, crc32c(a, m)) is that of a followed by b.
[[nodiscard]] std::uint32_t crc32c(const void* data, std::int64_t bytes, std::uint32_t previous = 0);

/// Whether crc32c() uses the processor's instruction.
[[nodiscard]] bool crc32c_is_hardware();

/// The table-driven version that runs everywhere, and the reference for the other.
[[nodiscard]] std::uint32_t crc32c_portable(const void* data, std::int64_t bytes, std::uint32_t previous = 0);

}  // namespace mica::io
