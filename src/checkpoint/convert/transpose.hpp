// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mica::checkpoint {

/// Rows in a panel of a matrix with `cols` columns: the part that is in memory while it is transposed. At least 1, at most `rows`.
[[nodiscard]] constexpr std::int64_t panel_rows(std::int64_t rows, std::int64_t cols, std::int64_t panel_numel) {
  const std::int64_t fitting = cols == 0 ? rows : panel_numel / cols;
  return fitting < 1 ? 1 : fitting < rows ? fitting : rows;
}

/// to[c * rows + r] = from[r * cols + c]. No overlap.
void transpose(const float* from, std::int64_t rows, std::int64_t cols, float* to);

}  // namespace mica::checkpoint
