// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "mica/io/raw_file.hpp"

namespace mica::io {

/// CRC-32C of the bytes [begin, begin + bytes) of a file, read in blocks.
/// @param done  called after each block, with its bytes; may be empty. @throws IoError
[[nodiscard]] std::uint32_t file_crc32c(RawFile& file, std::int64_t begin, std::int64_t bytes,
                                        const std::function<void(std::int64_t)>& done = {});

}  // namespace mica::io
