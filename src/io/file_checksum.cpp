// SPDX-License-Identifier: Apache-2.0
#include "mica/io/file_checksum.hpp"

#include <algorithm>
#include <vector>

#include "mica/io/crc32c.hpp"

namespace mica::io {

std::uint32_t file_crc32c(RawFile& file, std::int64_t begin, std::int64_t bytes, const std::function<void(std::int64_t)>& done) {
  constexpr std::int64_t kMostBytes = 1 << 20;
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(kMostBytes, bytes)));
  std::uint32_t crc = 0;
  for (std::int64_t at = 0; at < bytes;) {
    const std::int64_t count = std::min(kMostBytes, bytes - at);
    file.read_at(begin + at, block.data(), count);
    crc = crc32c(block.data(), count, crc);
    at += count;
    if (done) done(count);
  }
  return crc;
}

}  // namespace mica::io
