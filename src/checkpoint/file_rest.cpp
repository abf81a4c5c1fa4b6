// SPDX-License-Identifier: Apache-2.0
#include "file_rest.hpp"

#include <algorithm>

#include "mica/io/crc32c.hpp"

namespace mica::checkpoint {

std::vector<FileRange> rest_of(const FileEntry& file) {
  std::vector<FileRange> ranges;
  std::int64_t at = 0;
  for (const DatasetEntry& dataset : file.datasets) {  // in file order
    if (dataset.offset > at) ranges.push_back({at, dataset.offset - at});
    at = dataset.offset + dataset.bytes;
  }
  if (file.bytes > at) ranges.push_back({at, file.bytes - at});
  return ranges;
}

std::uint32_t rest_crc(io::RawFile& raw, const FileEntry& file) {
  std::uint32_t crc = 0;
  std::vector<std::byte> bytes;
  for (const FileRange& range : rest_of(file)) {
    for (std::int64_t done = 0; done < range.bytes;) {
      const std::int64_t count = std::min(kBlockBytes, range.bytes - done);
      bytes.resize(static_cast<std::size_t>(count));
      raw.read_at(range.offset + done, bytes.data(), count);
      crc = io::crc32c(bytes.data(), count, crc);
      done += count;
    }
  }
  return crc;
}

}  // namespace mica::checkpoint
