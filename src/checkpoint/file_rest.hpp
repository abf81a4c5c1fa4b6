// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "mica/checkpoint/manifest.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::checkpoint {

/// A range of bytes in a file.
struct FileRange {
  std::int64_t offset, bytes;
};

/// The ranges outside a file's datasets, in file order: HDF5's metadata and the tables.
[[nodiscard]] std::vector<FileRange> rest_of(const FileEntry& file);

/// The CRC-32C of those ranges. @throws IoError.
[[nodiscard]] std::uint32_t rest_crc(io::RawFile& raw, const FileEntry& file);

}  // namespace mica::checkpoint
