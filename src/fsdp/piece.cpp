// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/piece.hpp"

#include "extent.hpp"

namespace mica::fsdp {

Piece make_piece(std::size_t parameter, const Shape& shape, std::int64_t begin, std::int64_t end, std::int64_t offset, int dim) {
  Piece piece{.parameter = parameter, .dim = dim, .begin = begin, .end = end, .offset = offset, .period = shape.numel()};
  if (dim == Piece::kFlat) return piece;
  const auto d = static_cast<std::size_t>(dim);
  piece.outer = extent(shape, 0, d);
  piece.inner = extent(shape, d + 1, shape.num_dims());
  piece.period = shape[d] * piece.inner;
  return piece;
}

}  // namespace mica::fsdp
