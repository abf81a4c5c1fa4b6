// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/state_tensor.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "mica/core/rounding.hpp"

#include "extent.hpp"

namespace mica::fsdp {

std::int64_t rows_of(const Shape& shape) { return shape.num_dims() == 0 ? 1 : shape[0]; }

std::int64_t row_numel_of(const Shape& shape) { return extent(shape, 1, shape.num_dims()); }

Rows rows_of_part(const Shape& shape, std::int64_t part, std::int64_t num_parts) {
  const std::int64_t all = rows_of(shape);
  if (shape.num_dims() == 0) return {0, all};
  const std::int64_t chunk = divide_up(all, num_parts);
  return {std::min(all, part * chunk), std::min(all, (part + 1) * chunk)};
}

Shape with_rows(const Shape& shape, std::int64_t rows) {
  if (shape.num_dims() == 0) return shape;
  std::array<std::int64_t, Shape::kMaxDims> dims{};
  std::ranges::copy(shape.dims(), dims.begin());
  dims[0] = rows;
  return Shape(std::span<const std::int64_t>(dims.data(), shape.num_dims()));
}

}  // namespace mica::fsdp
