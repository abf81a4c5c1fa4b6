#include "mica/fsdp/state_tensor.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace mica::fsdp {

std::int64_t rows_of(const Shape& shape) { return shape.num_dims() == 0 ? 1 : shape[0]; }

std::int64_t row_numel_of(const Shape& shape) {
  std::int64_t numel = 1;
  for (std::size_t d = 1; d < shape.num_dims(); ++d) numel *= shape[d];
  return numel;
}

Shape with_rows(const Shape& shape, std::int64_t rows) {
  if (shape.num_dims() == 0) return shape;
  std::array<std::int64_t, Shape::kMaxDims> dims{};
  std::ranges::copy(shape.dims(), dims.begin());
  dims[0] = rows;
  return Shape(std::span<const std::int64_t>(dims.data(), shape.num_dims()));
}

}  // namespace mica::fsdp
