// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "mica/tensor/shape.hpp"

namespace mica::fsdp {

/// The product of the extents of dims [first, last).
[[nodiscard]] inline std::int64_t extent(const Shape& shape, std::size_t first, std::size_t last) {
  std::int64_t numel = 1;
  for (std::size_t d = first; d < last; ++d) numel *= shape[d];
  return numel;
}

}  // namespace mica::fsdp
