#pragma once

#include <cstdint>
#include <string>

#include "mica/tensor/shape.hpp"

namespace mica::fsdp {

/// What one rank holds of one parameter, and where it is stored: the currency between fsdp and everything above it.
/// Elements [begin, end) of the row-major flattened parameter lie at [offset, offset + numel()) of the unit's shard.
/// Example: a 5x5 weight over 2 ranks: rank 0 {begin 0, end 13, offset 0}, rank 1 {begin 13, end 25, offset 0}.
struct Piece {
  std::string parameter;  ///< full name
  Shape shape;            ///< of the whole parameter
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;  ///< elements into the rank's shard of the unit

  [[nodiscard]] std::int64_t numel() const { return end - begin; }
  [[nodiscard]] bool empty() const { return begin == end; }
  friend bool operator==(const Piece&, const Piece&) = default;
};

}  // namespace mica::fsdp
