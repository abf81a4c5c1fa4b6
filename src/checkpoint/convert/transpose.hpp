// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mica::checkpoint {

/// Rows of a matrix with `cols` columns that make up a panel, which is what is held of it while it is transposed; at
/// least 1, at most all.
[[nodiscard]] constexpr std::int64_t panel_rows(std::int64_t rows, std::int64_t cols, std::int64_t panel_numel) {
  const std::int64_t fitting = cols == 0 ? rows : panel_numel / cols;
  return fitting < 1 ? 1 : fitting < rows ? fitting : rows;
}

/// to[c * rows + r] = from[r * cols + c]. No overlap.
void transpose(const float* from, std::int64_t rows, std::int64_t cols, float* to);

}  // namespace mica::checkpoint
