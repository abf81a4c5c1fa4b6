#include "mica/fsdp/piece.hpp"

#include "extent.hpp"

namespace mica::fsdp {
std::int64_t Piece::num_runs() const { return dim == kFlat ? 1 : extent(shape, 0, static_cast<std::size_t>(dim)); }

std::int64_t Piece::run_numel() const {
  return dim == kFlat ? end - begin
                      : (end - begin) * extent(shape, static_cast<std::size_t>(dim) + 1, shape.num_dims());
}

Piece::Run Piece::run(std::int64_t i) const {
  if (dim == kFlat) return {begin, end, offset};
  const auto d = static_cast<std::size_t>(dim);
  const std::int64_t inner = extent(shape, d + 1, shape.num_dims());
  const std::int64_t first = (i * shape[d] + begin) * inner;
  return {first, first + run_numel(), offset + i * run_numel()};
}

}  // namespace mica::fsdp
