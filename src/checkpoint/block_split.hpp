// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mica::checkpoint {

/// Blocks [first, last) of a file.
struct BlockRange {
  std::size_t file = 0;
  std::int64_t first = 0, last = 0;

  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

/// Divides the blocks of all files, in order, into parts that differ by at most one block. Takes a time proportional to files and parts.
/// @param num_blocks  of each file  @returns for each part its ranges, in order; none is empty
[[nodiscard]] std::vector<std::vector<BlockRange>> split_blocks(const std::vector<std::int64_t>& num_blocks, std::int64_t num_parts);

}  // namespace mica::checkpoint
