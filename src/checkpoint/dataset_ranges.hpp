#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"

namespace mica::checkpoint {

/// Bytes [begin, begin + bytes) of a dataset, and the memory that they are read into.
struct DatasetRange {
  const FileEntry* file;
  const DatasetEntry* dataset;
  std::int64_t begin;
  std::int64_t bytes;
  std::byte* data;
};

/// Reads them all: every block that one of them touches is read once and checked. The memory of different ranges does
/// not overlap. @returns bytes read. @throws DamagedCheckpointError.
std::int64_t read_ranges(const std::string& checkpoint_folder, std::vector<DatasetRange> ranges);

}  // namespace mica::checkpoint
