// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "mica/core/dtype.hpp"
#include "mica/core/rounding.hpp"

namespace mica::cpu {

/// Element `index` of a matrix.
[[nodiscard]] inline const std::byte* element_at(const void* data, DType dtype, std::int64_t index) {
  return static_cast<const std::byte*>(data) + index * dtype_bytes(dtype);
}
[[nodiscard]] inline std::byte* element_at(void* data, DType dtype, std::int64_t index) {
  return static_cast<std::byte*>(data) + index * dtype_bytes(dtype);
}

/// Rows of a multiple of so many floats share lines of a first-level cache. See [Note: rows 1 KiB apart].
constexpr std::int64_t kRowsApart = 1024 / 4;
/// Floats from one row of `cols` to the next with which they do not.
[[nodiscard]] constexpr std::int64_t spaced(std::int64_t cols) {
  constexpr std::int64_t kLine = 64 / 4;
  const std::int64_t floats = round_up(cols, kLine) + kLine;
  return floats % kRowsApart == 0 ? floats + kLine : floats;
}

/// C (+)= sums [rows, cols], which are dense; c's rows lie ldc elements apart. Each element is rounded once.
void round_rows(const float* sums, std::int64_t rows, std::int64_t cols, void* c, DType dtype, std::int64_t ldc, bool accumulate);

}  // namespace mica::cpu
