// SPDX-License-Identifier: Apache-2.0
#include "block_split.hpp"

#include <algorithm>

namespace mica::checkpoint {

std::vector<std::vector<BlockRange>> split_blocks(const std::vector<std::int64_t>& num_blocks, std::int64_t num_parts) {
  std::vector<std::int64_t> begins{0};  // of each file's first block, counted through all files; one more entry: all blocks
  for (const std::int64_t blocks : num_blocks) begins.push_back(begins.back() + blocks);
  const std::int64_t total = begins.back();
  std::vector<std::vector<BlockRange>> parts(static_cast<std::size_t>(num_parts));
  std::size_t file = 0;
  for (std::int64_t p = 0; p < num_parts; ++p) {
    const std::int64_t last = total * (p + 1) / num_parts;
    for (std::int64_t at = total * p / num_parts; at < last;) {
      while (begins[file + 1] <= at) ++file;
      const std::int64_t end = std::min(last, begins[file + 1]);
      parts[static_cast<std::size_t>(p)].push_back({file, at - begins[file], end - begins[file]});
      at = end;
    }
  }
  return parts;
}

}  // namespace mica::checkpoint
