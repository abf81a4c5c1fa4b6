// SPDX-License-Identifier: Apache-2.0
#include "transpose.hpp"

#include <algorithm>

namespace mica::checkpoint {

void transpose(const float* from, std::int64_t rows, std::int64_t cols, float* to) {
  constexpr std::int64_t kTile = 32;  // two tiles of 4 KiB stay in the L1 cache
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTile) {
    const std::int64_t r1 = std::min(r0 + kTile, rows);
    for (std::int64_t c0 = 0; c0 < cols; c0 += kTile) {
      const std::int64_t c1 = std::min(c0 + kTile, cols);
      for (std::int64_t c = c0; c < c1; ++c) {
        for (std::int64_t r = r0; r < r1; ++r) to[c * rows + r] = from[r * cols + c];
      }
    }
  }
}

}  // namespace mica::checkpoint
